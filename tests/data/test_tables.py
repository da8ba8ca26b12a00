"""A user's own table by a map of its columns: typed truth, spaces, formats, named errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from vlmrl import plugins
from vlmrl.answers import templates
from vlmrl.config import SourceConfig
from vlmrl.data.files import hub
from vlmrl.data.source import Source, open_source, open_target
from vlmrl.data.typed_rows import COLUMNS
from vlmrl.errors import UserError
from vlmrl.features.check import list_parts
from vlmrl.features.check.data_check import check_and_print
from vlmrl.media.access import Access
from vlmrl.media.decode import decode
from vlmrl.schema import Box, Frame, Media, Sample, Truth
from vlmrl.truths.prompting import write_demo


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Image.new("RGB", (100, 50), (9, 9, 9)).save(tmp_path / "a.png")
    return tmp_path


def written(folder: Path, rows: list[Any], name: str = "train.jsonl") -> str:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(folder)


CELLS = {
    "name": "t1",
    "file": "a.png",
    "ask": "Where is the dog?",
    "where": [[10, 5, 60, 45]],
    "what": ["dog"],
    "hard": 0.5,
}
MAP = {"id": "name", "image": "file", "question": "ask", "boxes": "where", "box_labels": "what"}
DOG = Box(0.1, 0.1, 0.6, 0.9, label="dog")


def table(folder: Path, row: dict[str, Any], columns: dict[str, str], **options: Any) -> Sample:
    options = {"path": written(folder, [row]), "columns": columns, **options}
    return open_source(SourceConfig(card="table", options=options)).sample(0)


@pytest.mark.parametrize(
    ("box", "options"),
    [
        ([10, 5, 60, 45], {"box_space": "pixel"}),
        ([10, 5, 50, 40], {"box_space": "pixel", "box_format": "xywh"}),
        ([100, 100, 600, 900], {"box_space": "norm1000"}),
        ([0.1, 0.1, 0.6, 0.9], {"box_space": "norm1"}),
    ],
)
def test_a_box_is_the_same_from_every_space(
    folder: Path, box: list[float], options: dict[str, Any]
) -> None:
    for value in ([box], box, json.dumps([box])):
        sample = table(folder, CELLS | {"where": value}, MAP, **options)
        assert sample.truth.boxes is not None
        assert sample.truth.boxes[0].xyxy == pytest.approx(DOG.xyxy)
        assert sample.truth.boxes[0].label == "dog"
    assert sample.meta["hard"] == 0.5
    assert sample.parts[1:] == ("Where is the dog?",)


def test_a_space_is_never_guessed() -> None:
    with pytest.raises(UserError, match="box_space must say"):
        plugins.build("card", "table", {"path": "x.jsonl", "columns": MAP})


def test_a_box_that_does_not_fit_the_declared_space_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match=r"train\.jsonl:1: column 'where': box .* lies outside"):
        table(folder, CELLS | {"where": [[100, 100, 600, 900]]}, MAP, box_space="pixel")


@pytest.mark.parametrize(
    ("cells", "columns", "truth"),
    [
        ({"a": "yes"}, {"answer": "a"}, Truth(text=("yes",))),
        ({"a": ["yes", "yeah"]}, {"answer": "a"}, Truth(text=("yes", "yeah"))),
        ({"a": 7}, {"answer": "a"}, Truth(text=("7",))),
        ({"a": "7.5"}, {"number": "a"}, Truth(number=7.5)),
        ({"a": "B"}, {"choice": "a"}, Truth(choice="B")),
        ({"a": "A", "o": "x"}, {"choice": "a", "options": "o"}, Truth(choice="A", options=("x",))),
        ({"a": ["cat", "dog"]}, {"labels": "a"}, Truth(labels=("cat", "dog"))),
        ({"a": '{"colour": "red"}'}, {"fields": "a"}, Truth(fields={"colour": "red"})),
        ({"a": [[1.5, 3]]}, {"spans": "a"}, None),
        ({"a": None, "b": 3}, {"answer": "a", "number": "b"}, Truth(number=3)),
        ({"a": [], "u": True}, {"answer": "a", "none": "u"}, Truth(none=True)),
        ({"a": "", "u": 1}, {"answer": "a", "none": "u"}, Truth(none=True)),
        ({"a": "x", "u": "false"}, {"answer": "a", "none": "u"}, Truth(text=("x",))),
        ({"a": "unanswerable", "u": True}, {"answer": "a", "none": "u"},
         Truth(text=("unanswerable",), none=True)),
    ],
)  # fmt: skip
def test_columns_become_typed_truth(
    folder: Path, cells: dict[str, Any], columns: dict[str, str], truth: Truth | None
) -> None:
    sample = table(folder, {"q": "What?", **cells}, {"question": "q", **columns})
    if truth is None:
        assert sample.truth.spans is not None
        assert (sample.truth.spans[0].start, sample.truth.spans[0].end) == (1.5, 3)
    else:
        assert sample.truth == truth


@pytest.mark.parametrize("as_text", [False, True])
def test_keypoints_and_rotated_boxes_are_columns_that_their_verifiers_score(
    folder: Path, as_text: bool
) -> None:
    cells: dict[str, Any] = {
        "person": [{"keypoints": [[20, 10, 2], [60, 40, 1], *[[0, 0, 0]] * 15], "area": 1250}],
        "ship": [{"rotated_box": [50, 25, 40, 20, 30], "label": "ship"}],
    }
    row = {"q": "What?", "i": "a.png"} | {
        key: json.dumps(value) if as_text else value for key, value in cells.items()
    }
    for verifier, kind, column in (
        ("oks", "keypoints", "person"), ("rotated_iou", "rotated_boxes", "ship"),
    ):  # fmt: skip
        columns = {"question": "q", "image": "i", kind: column}
        sample = table(folder, row, columns, box_space="pixel")
        assert sample.demo is not None
        answer = f"<think>a</think><answer>{json.dumps(cells[column])}</answer>"
        frame = Frame(100, 50)
        completion = templates.completion(answer, sample.template, frame)
        judged = plugins.build("verifier", verifier, {})(completion, sample)
        assert judged.score == pytest.approx(1.0), judged
        with pytest.raises(UserError, match="box_space must say"):
            plugins.build("card", "table", {"path": "x.jsonl", "columns": columns})
    person = table(folder, row, {"question": "q", "image": "i", "keypoints": "person"},
                   box_space="pixel").truth.value("keypoints")[0]  # fmt: skip
    assert person.spots[:3] == ((0.2, 0.2, 2), (0.6, 0.8, 1), (0.0, 0.0, 0))
    assert person.area == 0.25


@pytest.mark.parametrize(
    ("cells", "columns", "message"),
    [
        ({}, {"question": "question"}, "columns.question: no column 'question'"),
        ({"a": "x"}, {"number": "a"}, "column 'a': number: expected a finite number, got 'x'"),
        ({"a": float("inf")}, {"number": "a"}, "column 'a': number: expected a finite"),
        ({"a": "[1,"}, {"options": "a"}, "column 'a': not valid JSON"),
        (
            {"a": 1, "o": ["x", "y"]},
            {"choice": "a", "options": "o"},
            "column 'a': expected the letter or the text of one of 2 options, got '1'",
        ),
        ({"a": None}, {"answer": "a"}, "no column says what is true"),
        ({"a": ""}, {"answer": "a"}, "column 'a': truth.text: expected a text"),
        ({"a": "x", "q": None}, {"answer": "a"}, "column 'q': the question is empty"),
        ({"a": "x", "q": "A <image>?"}, {"answer": "a"}, "1 <image> for 0"),
        ({"a": "x", "f": 3}, {"answer": "a", "image": "f"}, "expected a path, URL"),
        ({"a": "x", "u": "maybe"}, {"answer": "a", "none": "u"}, "none: expected true or false"),
    ],
)
def test_bad_cell_is_named(
    folder: Path, cells: dict[str, Any], columns: dict[str, str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        table(folder, {"q": "What?", **cells}, {"question": "q", **columns})


def test_a_row_may_lack_a_column_that_others_have(folder: Path) -> None:
    rows = [{"q": "How many?", "n": 2}, {"q": "What?", "a": "a dog"}]
    options = {
        "path": written(folder, rows),
        "columns": {"question": "q", "answer": "a", "number": "n"},
    }
    source = open_source(SourceConfig(card="table", options=options))
    assert source.sample(0).truth == Truth(number=2)
    assert source.sample(1).truth == Truth(text=("a dog",))


def test_pictures_stand_where_the_question_puts_them(folder: Path) -> None:
    row = {"q": "Here <image> and there <image>: same?", "f": ["a.png", "a.png"], "a": "yes"}
    columns = {"question": "q", "image": "f", "answer": "a"}
    sample = table(folder, row, columns, prompt="{question} Say yes or no.")
    kinds = [part if isinstance(part, str) else part.kind for part in sample.parts]
    assert kinds == ["Here", "image", "and there", "image", ": same? Say yes or no."]


def test_fixed_question_thought_and_weight(folder: Path) -> None:
    columns = {"answer": "a", "thought": "t", "weight": "w"}
    row = {"a": "yes", "t": "because", "w": 0.25}
    sample = table(folder, row, columns, prompt="Is it?")
    assert sample.text == "Is it?"
    assert sample.weight == 0.25
    assert sample.demo is not None
    assert (sample.demo.thought, write_demo(sample.demo, Frame())) == ("because", "yes")
    with pytest.raises(UserError, match="columns has no 'question'"):
        table(folder, row, columns)


def test_misspelt_key_of_the_map_is_suggested() -> None:
    with pytest.raises(UserError, match="no key 'qestion'; did you mean 'question'"):
        plugins.build("card", "table", {"path": "x", "columns": {"qestion": "q"}})


@pytest.fixture
def image_rows(folder: Path) -> list[dict[str, Any]]:
    data = (folder / "a.png").read_bytes()
    return [
        {"id": f"p{i}", "image": {"bytes": data, "path": None}, "q": "What?", "a": str(i)}
        for i in range(7)
    ]


def same_from_disk(source: Source) -> None:
    assert [source.sample(i).truth.text for i in (0, 6)] == [("0",), ("6",)]
    sample = source.sample(3)
    assert isinstance(sample.parts[0], Media)
    assert sample.parts[0].data is not None  # not decoded by the reader
    assert decode(sample, source.access)[0].size == (100, 50)


def test_parquet_rows(folder: Path, image_rows: list[dict[str, Any]]) -> None:
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist(image_rows[:4]), folder / "train-0-of-2.parquet"
    )
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist(image_rows[4:]), folder / "train-1-of-2.parquet"
    )
    columns = {"image": "image", "question": "q", "answer": "a"}
    same_from_disk(
        open_source(SourceConfig(card="table", options={"path": str(folder), "columns": columns}))
    )
    (folder / "test.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(UserError, match=r"test\.parquet: cannot be read as Parquet"):
        open_target(f"{folder}/test.parquet", {"columns": columns})


def test_saved_hugging_face_data(folder: Path, image_rows: list[dict[str, Any]]) -> None:
    hf = hub.datasets
    data = hf.Dataset.from_list(image_rows).cast_column("image", hf.Image())
    hf.DatasetDict({"train": data, "test": data.select([0])}).save_to_disk(folder / "saved")
    columns = {"image": "image", "question": "q", "answer": "a"}
    options = {"path": str(folder / "saved"), "columns": columns}
    same_from_disk(open_source(SourceConfig(card="table", options=options)))
    assert len(open_source(SourceConfig(card="table", options=options, split="test")).rows) == 1
    with pytest.raises(UserError, match="no split 'val'; there are: train, test"):
        open_source(SourceConfig(card="table", options=options, split="val"))


def test_a_table_of_several_files(folder: Path) -> None:
    written(folder, [CELLS], "one.jsonl")
    written(folder, [CELLS, CELLS], "two.jsonl")
    paths = {"train": f"{folder}/one.jsonl", "test": f"{folder}/two.jsonl"}
    options = {"path": paths, "columns": MAP, "box_space": "pixel"}
    for split, count in (("train", 1), ("test", 2)):
        source = open_source(SourceConfig(card="table", options=options, split=split))
        assert len(source.rows) == count
        source.sample(0)


def test_the_root_of_a_config_holds_where_a_table_reads_image_sizes(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    images = tmp_path_factory.mktemp("images")
    (folder / "a.png").rename(images / "a.png")
    row = CELLS | {"file": str(images / "a.png")}
    options = {"path": written(folder, [row]), "columns": MAP, "box_space": "pixel"}
    config = SourceConfig(card="table", options=options)
    with pytest.raises(UserError, match="outside"):
        open_source(config).sample(0)
    assert open_source(config, Access(str(images))).sample(0).truth.boxes == (DOG,)


def test_every_key_of_columns_is_named_in_the_list_of_cards_and_on_its_page() -> None:
    listed = "\n".join(list_parts.describe("card"))
    page = (Path(__file__).parents[2] / "docs/train/data.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    for key in COLUMNS:
        assert f"`{key}`" in listed, key
        assert any(f"`{key}`" in row for row in rows), key


def test_a_choice_lists_the_options_that_its_question_does_not_show(tmp_path: Path) -> None:
    rows = [
        {"image": "a.png", "q": "Which one?", "right": "B", "all": ["cat", "dog"]},
        {"image": "a.png", "q": "Which one?", "right": "B", "all": ["A. cat", "B. dog"]},
        {"image": "a.png", "q": "Which one? (A) cat (B) dog", "right": "B", "all": ["cat", "dog"]},
        {"image": "a.png", "q": "A cat or a dog?", "right": "dog", "all": ["cat", "dog"]},
        {"image": "a.png", "q": "Which one?", "right": "dog", "all": ["cat", "dog"]},
    ]
    (tmp_path / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    Image.new("RGB", (56, 56)).save(tmp_path / "a.png")
    columns = {"image": "image", "question": "q", "choice": "right", "options": "all"}
    options = {"path": str(tmp_path), "columns": columns}
    source = open_source(SourceConfig(card="table", options=options))
    listed = "Which one?\nA. cat\nB. dog"
    assert [source.sample(index).text for index in range(5)] == [
        *(listed, listed, "Which one? (A) cat (B) dog", "A cat or a dog?", listed)
    ]
    plain = open_source(SourceConfig(card="table", options={**options, "list_options": False}))
    assert plain.sample(0).text == "Which one?"
    lines: list[str] = []
    check_and_print([plain], say=lines.append)
    assert any("3 questions do not show the options of their choice" in line for line in lines)
