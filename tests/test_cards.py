"""Cards: drawn shapes with exact truth, records with pixel boxes, tables by a map; data check."""

from __future__ import annotations

import collections
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from vlmrl import plugins
from vlmrl.config import SourceConfig
from vlmrl.data import hub
from vlmrl.data.card import Card
from vlmrl.data.check import check, check_and_print, explain, list_cards
from vlmrl.data.decode import decode
from vlmrl.data.image import load_image
from vlmrl.data.source import Source, open_source, open_target, select
from vlmrl.errors import MediaError, UserError
from vlmrl.geometry import iou
from vlmrl.schema import Box, Media, Sample, Truth

SHARED = Path(__file__).parents[2] / "shared" / "data"
DATASETS = ("bccd", "cards", "charts", "gui", "iqa_livec", "tables")


def samples(card: Card, split: str) -> list[Sample]:
    return [card.to_sample(row, "toy") for row in card.rows(split)]


def shapes(**options: Any) -> Card:
    return plugins.build("card", "shapes", options)


# ----------------------------------------------------------------------------------------- shapes


def drawn_box(sample: Sample) -> tuple[float, ...]:
    """The box of the pixels that are not background, unit square."""
    pixels = np.asarray(load_image(sample.media[0])).astype(int)
    size = len(pixels)
    gradient = np.linspace(150, 40, size).round()
    shade = collections.Counter(pixels[:, :, 1].ravel()).most_common(1)[0][0]
    different = (
        (pixels[:, :, 0] != gradient[None, :])
        | (pixels[:, :, 1] != shade)
        | (pixels[:, :, 2] != gradient[:, None])
    )
    ys, xs = np.nonzero(different)
    return tuple(v / size for v in (xs.min(), ys.min(), xs.max() + 1, ys.max() + 1))


@pytest.mark.parametrize("size", [84, 120])
def test_the_true_box_is_the_box_of_the_drawn_pixels(size: int) -> None:
    kinds = set()
    for sample in samples(shapes(size=size, count=60), "train"):
        assert sample.truth.boxes is not None
        (box,) = sample.truth.boxes
        assert box.label is not None
        kinds.add(box.label.split()[1])
        assert box.xyxy == pytest.approx(drawn_box(sample))
        assert sample.text == f"Where is the {box.label.split()[0]} shape?"
        for side in (box.x2 - box.x1, box.y2 - box.y1):
            assert 3 <= round(side * 12) <= 6
    assert kinds == {"circle", "square", "triangle"}


def test_letters_lie_inside_their_box() -> None:
    for sample in samples(shapes(task="reading", count=40), "train"):
        (box,) = sample.meta["boxes"]
        x1, y1, x2, y2 = drawn_box(sample)
        assert box.x1 <= x1 < x2 <= box.x2
        assert box.y1 <= y1 < y2 <= box.y2
        assert sample.truth.text == (box.label,)
        assert sample.demo is not None
        assert sample.demo.text == box.label


def test_counts_and_choices_agree_with_the_scene() -> None:
    for sample in samples(shapes(task="counting", count=80), "train"):
        colours = [box.label.split()[0] for box in sample.meta["boxes"]]
        asked = sample.text.split()[2]
        assert sample.truth.number == colours.count(asked)
    for sample in samples(shapes(task="question", count=40), "train"):
        assert sample.truth.choice in sample.meta["boxes"][0].label.split()
        assert sample.truth.choice in (sample.truth.options or ())
        assert all(option in sample.text for option in sample.truth.options or ())


@pytest.mark.parametrize("task", ["grounding", "counting", "question", "reading"])
def test_no_scene_is_in_two_splits(task: str) -> None:
    card = shapes(task=task)
    scenes: dict[str, set[Any]] = {}
    for split in card.splits:
        found = samples(card, split)
        assert len(found) == {"train": 2000, "demos": 2000, "val": 96, "test": 200}[split]
        scenes[split] = {sample.meta["boxes"] for sample in found}
    for a in scenes:
        for b in scenes:
            assert a == b or not scenes[a] & scenes[b]


def test_scenes_depend_on_seed_and_index_only() -> None:
    first = samples(shapes(count=5), "test")
    assert first == samples(shapes(count=5), "test")
    assert first == samples(shapes(count=9), "test")[:5]
    assert first != samples(shapes(count=5, seed=1), "test")
    exact = samples(shapes(count=5, loose=0), "test")
    assert [s.media for s in exact] == [s.media for s in first]


def test_demonstrations_are_as_loose_as_asked() -> None:
    overlaps = []
    for sample in samples(shapes(), "demos"):
        assert sample.truth.boxes and sample.demo and sample.demo.boxes
        true, loose = sample.truth.boxes[0], sample.demo.boxes[0]
        for before, after in ((loose.x1, true.x1), (true.x2, loose.x2)):
            assert round((after - before) * 84, 6) in (0, 7, 14)
        overlaps.append(iou(true, loose))
    assert np.mean(overlaps) == pytest.approx(0.55, abs=0.02)  # as in the measured recipe
    for sample in samples(shapes(count=20, loose=0), "demos"):
        assert sample.demo and sample.demo.boxes == sample.truth.boxes


def test_thought_names_the_cell_of_the_centre() -> None:
    names = {"top left", "top", "top right", "left", "center", "right"}
    names |= {"bottom left", "bottom", "bottom right"}
    seen = set()
    for sample in samples(shapes(count=200), "demos"):
        assert sample.demo and sample.truth.boxes
        box = sample.truth.boxes[0]
        seen.add(sample.demo.thought)
        assert ("left" in sample.demo.thought) == ((box.x1 + box.x2) / 2 < 1 / 3)
        assert ("bottom" in sample.demo.thought) == ((box.y1 + box.y2) / 2 >= 2 / 3)
    assert seen == names


def test_corpus_of_shapes_has_every_number_and_the_written_form() -> None:
    text = "\n".join(shapes().corpus())
    assert '<think>top left</think><answer>{"bbox_2d": [' in text
    for number in range(0, 85, 7):
        assert f"{number}, " in text or f" {number}]" in text


def test_wrong_options_of_shapes_are_refused() -> None:
    for options in ({"size": 85}, {"count": 0}, {"task": "guessing"}, {"colour": "red"}):
        with pytest.raises(UserError, match="card 'shapes'"):
            shapes(**options)


# ---------------------------------------------------------------------------------------- records


@pytest.mark.skipif(not SHARED.exists(), reason="the shared data folder is not here")
@pytest.mark.parametrize("name", DATASETS)
def test_every_shared_row_becomes_a_sample(name: str) -> None:
    for file in (SHARED / name).glob("*.jsonl"):
        source = open_source(SourceConfig(card=str(SHARED / name), split=file.stem))
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        assert len(source.rows) == len(rows)
        for i, row in enumerate(rows):
            sample = source.sample(i)
            assert sample.id == row["id"]
            assert [Path(m.path or "").name for m in sample.media] == [
                Path(p).name for p in row["images"]
            ]
            assert "pixels" not in sample.text
            assert sample.demo is not None
            agrees(sample.truth, row)
        decode(source.sample(0), source.access)


def agrees(truth: Truth, row: Mapping[str, Any]) -> None:
    """The truth says what the row's answer says."""
    if truth.boxes is not None:
        answer = json.loads(row["answer"])
        listed = [answer] if isinstance(answer[0], int) else [item["box"] for item in answer]
        size = np.array([row["width"], row["height"]] * 2)
        np.testing.assert_allclose([b.xyxy for b in truth.boxes] * size, listed)
        if isinstance(answer[0], dict):
            assert [b.label for b in truth.boxes] == [item["label"] for item in answer]
    elif "count" in row:
        assert truth == Truth(number=int(row["answer"]))
    elif truth.choice is not None:
        assert truth.choice == row["answer"]
        assert len(truth.options or ()) in (2, 6)
    else:
        assert truth.text == (row["answer"],)


ROW = {
    "id": "r1",
    "task": "grounding",
    "images": ["a.png"],
    "width": 100,
    "height": 50,
    "question": "Where is the dog? Give its bounding box as [x1, y1, x2, y2] in pixels.",
    "answer": "[10, 5, 60, 45]",
    "boxes": [[10, 5, 60, 45]],
    "labels": ["dog"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Image.new("RGB", (100, 50), (9, 9, 9)).save(tmp_path / "a.png")
    return tmp_path


def written(folder: Path, rows: list[Any], name: str = "train.jsonl") -> str:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(folder)


def records(folder: Path, rows: list[Any], **options: Any) -> Source:
    path = written(folder, rows)
    return open_source(SourceConfig(card="records", options={"path": path, **options}))


def test_question_loses_the_space_of_its_answer_unless_kept(folder: Path) -> None:
    assert records(folder, [ROW]).sample(0).text == "Where is the dog? Give its bounding box."
    assert records(folder, [ROW], native=False).sample(0).text == ROW["question"]


def test_loose_demonstration_of_a_record(folder: Path) -> None:
    source = records(folder, [ROW | {"id": str(i)} for i in range(50)], loose=0.1)
    pushed = set()
    for i in range(50):
        demo = source.sample(i).demo
        assert demo and demo.boxes
        pushed.add(round(0.1 - demo.boxes[0].x1, 6))
    assert pushed == {0, 0.05, 0.1}


def test_nothing_to_find_is_declared(folder: Path) -> None:
    truth = records(folder, [ROW | {"answer": "[]", "boxes": [], "labels": []}]).sample(0).truth
    assert truth == Truth(boxes=(), none=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"boxes": [[10, 5, 160, 45]]}, r"box \[10, 5, 160, 45\] lies outside 0..100 x 0..50"),
        ({"boxes": [[60, 5, 10, 45]]}, "x1 < x2"),
        ({"boxes": [[1, 2, 3]]}, "truth.boxes: a box is 4 numbers"),
        ({"boxes": [[1, 2, "3", 4]]}, "truth.boxes: a finite number"),
        ({"boxes": [[1, 2, float("nan"), 4]]}, "truth.boxes: a finite number"),
        ({"boxes": "none"}, "key 'boxes': a list"),
        ({"labels": ["dog", "cat"]}, "key 'labels': 1 labels are wanted"),
        ({"width": None}, "keys 'width', 'height'"),
        ({"question": ""}, "key 'question'"),
        ({"answer": None}, "key 'answer'"),
        ({"id": 7}, "key 'id'"),
        ({"images": "a.png"}, "key 'images'"),
        ({"images": [], "videos": ["a.mp4"]}, "videos are not supported yet"),
        (
            {"question": "Which? Answer with one of: cat, cow.", "answer": "dog"},
            "none of the options",
        ),
    ],
)
def test_bad_record_is_named_by_file_line_and_key(
    folder: Path, change: dict[str, Any], message: str
) -> None:
    source = records(folder, [ROW, ROW | change])
    source.sample(0)
    with pytest.raises(UserError, match=message) as caught:
        source.sample(1)
    assert str(caught.value).startswith(f"{folder}/train.jsonl:2: ")


@pytest.mark.parametrize(
    "line", ["{", "[1]", '{"id": "x"', '{"id": "\\ud800"', "[" * 100000, "9" * 5000, "\udcff"]
)
def test_broken_line_is_named_and_the_others_stay(folder: Path, line: str) -> None:
    text = f"\ufeff{json.dumps(ROW)}\r\n\n  \n{line}\n{json.dumps(ROW | {'id': 'r3'})}"
    (folder / "train.jsonl").write_bytes(text.encode("utf-8", "surrogateescape"))
    source = open_source(SourceConfig(card=str(folder)))
    assert len(source.rows) == 3
    assert (source.sample(0).id, source.sample(2).id) == ("r1", "r3")
    with pytest.raises(UserError, match=r"train\.jsonl:4: "):
        source.sample(1)


def test_stated_size_must_be_the_upright_one(folder: Path) -> None:
    source = records(folder, [ROW | {"width": 50, "height": 100, "boxes": [[1, 2, 3, 4]]}])
    with pytest.raises(MediaError, match="says 50x100 pixels, upright it has 100x50"):
        decode(source.sample(0), source.access)


def test_tasks_filter_keeps_broken_lines_and_knows_the_tasks(folder: Path) -> None:
    rows = [ROW, ROW | {"id": "c", "task": "counting", "answer": "2", "count": 2}, "{"]
    source = records(folder, rows, tasks=["counting"])
    assert len(source.rows) == 2
    assert source.sample(0).truth == Truth(number=2)
    with pytest.raises(UserError, match="no task 'ocr'; there are: counting, grounding"):
        records(folder, rows, tasks=["ocr"])


def test_questions_about_one_picture_stay_on_one_side(folder: Path) -> None:
    rows = [ROW | {"id": f"{i}", "images": [f"{i // 3}.png"]} for i in range(900)]
    card = records(folder, rows).card
    parts = [{r["images"][0] for r in select(card, s)} for s in ("train[:70%]", "train[70%:]")]
    assert not parts[0] & parts[1]
    assert len(parts[0]) + len(parts[1]) == 300
    assert len(parts[0]) == pytest.approx(210, abs=24)  # 3 standard errors


def test_a_single_file_is_one_split(folder: Path) -> None:
    written(folder, [ROW], "test.jsonl")
    assert open_target(f"{folder}/test.jsonl").split == "test"
    with pytest.raises(UserError, match="holds split 'test', not 'train'"):
        open_source(SourceConfig(card=f"{folder}/test.jsonl"))
    with pytest.raises(UserError, match=r"no file for split 'val'; there are: test\.jsonl"):
        open_source(SourceConfig(card=str(folder), split="val"))
    with pytest.raises(UserError, match="no such file or folder"):
        open_source(SourceConfig(card=f"{folder}/none.jsonl"))


# ------------------------------------------------------------------------------------------ table

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
        ({"a": "B", "o": "x"}, {"choice": "a", "options": "o"}, Truth(choice="B", options=("x",))),
        ({"a": ["cat", "dog"]}, {"labels": "a"}, Truth(labels=("cat", "dog"))),
        ({"a": '{"colour": "red"}'}, {"fields": "a"}, Truth(fields={"colour": "red"})),
        ({"a": [[1.5, 3]]}, {"spans": "a"}, None),
        ({"a": None, "b": 3}, {"answer": "a", "number": "b"}, Truth(number=3)),
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


@pytest.mark.parametrize(
    ("cells", "columns", "message"),
    [
        ({}, {"question": "question"}, "columns.question: no column 'question'"),
        ({"a": "x"}, {"number": "a"}, "column 'a': number: a number is wanted, found 'x'"),
        ({"a": float("inf")}, {"number": "a"}, "column 'a': truth.number"),
        ({"a": "[1,"}, {"options": "a"}, "column 'a': not valid JSON"),
        ({"a": None}, {"answer": "a"}, "none of the mapped columns says what is true"),
        ({"a": ""}, {"answer": "a"}, "column 'a': truth.text: a text is wanted"),
        ({"a": "x", "q": None}, {"answer": "a"}, "column 'q': the question is empty"),
        ({"a": "x", "q": "A <image>?"}, {"answer": "a"}, "1 <image> for 0 pictures"),
        ({"a": "x", "f": 3}, {"answer": "a", "image": "f"}, "an image is a path"),
    ],
)
def test_bad_cell_is_named(
    folder: Path, cells: dict[str, Any], columns: dict[str, str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        table(folder, {"q": "What?", **cells}, {"question": "q", **columns})


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
    assert (sample.demo.thought, sample.demo.text) == ("because", "yes")
    with pytest.raises(UserError, match="columns has no 'question'"):
        table(folder, row, columns)


def test_misspelt_key_of_the_map_is_suggested() -> None:
    with pytest.raises(UserError, match="no key 'qestion'; did you mean 'question'"):
        plugins.build("card", "table", {"path": "x", "columns": {"qestion": "q"}})


@pytest.fixture
def picture_rows(folder: Path) -> list[dict[str, Any]]:
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


def test_parquet_rows(
    folder: Path, picture_rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub.datasets.config, "HF_DATASETS_CACHE", str(folder / "cache"))
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist(picture_rows[:4]), folder / "train-0-of-2.parquet"
    )
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist(picture_rows[4:]), folder / "train-1-of-2.parquet"
    )
    columns = {"image": "image", "question": "q", "answer": "a"}
    same_from_disk(
        open_source(SourceConfig(card="table", options={"path": str(folder), "columns": columns}))
    )
    (folder / "test.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(UserError, match=r"test\.parquet: cannot be read as Parquet"):
        open_target(f"{folder}/test.parquet", {"columns": columns})


def test_saved_hugging_face_data(folder: Path, picture_rows: list[dict[str, Any]]) -> None:
    hf = hub.datasets
    data = hf.Dataset.from_list(picture_rows).cast_column("image", hf.Image())
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


# ------------------------------------------------------------------------------------------ check


def test_check_reports_every_row_as_training_would_see_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = ROW | {"id": "r2", "images": ["b.png"]}
    source = records(folder, [ROW, missing, "{", ROW | {"id": "r4", "boxes": []}])
    good, gone, broken, empty = check(source)
    assert good == {
        "id": "r1",
        "ok": True,
        "reason": None,
        "media": [
            {
                "kind": "image",
                "width": 100,
                "height": 50,
                "frames": None,
                "fps": None,
                "duration": None,
                "rate": None,
            }
        ],
        "tokens": None,
    }
    assert (gone["id"], gone["ok"]) == ("r2", False)
    assert "b.png: no such file" in gone["reason"]
    assert (broken["id"], broken["ok"]) == ("row 2", False)
    assert empty["id"] == "r4"
    out = folder / "report.jsonl"
    assert check_and_print(source, out) == 3
    assert [json.loads(line)["ok"] for line in out.read_text().splitlines()] == [
        True, False, False, False,
    ]  # fmt: skip
    printed = capsys.readouterr().out
    assert "train: 4 rows, 1 good, 3 bad" in printed
    assert "train.jsonl:3: not valid JSON" in printed


def test_explain_shows_a_box_in_every_space(folder: Path) -> None:
    text = explain(records(folder, [ROW]), 0)
    assert "100 x 50 upright pixels" in text
    for numbers in ("[10, 5, 60, 45]", "[100, 100, 600, 900]", "[0.1, 0.1, 0.6, 0.9]"):
        assert numbers in text
    with pytest.raises(UserError, match="has rows 0 to 0, not 1"):
        explain(records(folder, [ROW]), 1)


def test_every_card_is_listed_with_its_licence() -> None:
    text = list_cards()
    for name in ("shapes", "records", "table"):
        assert f"{name}: " in text
    assert "Apache-2.0" in text


def test_targets_on_the_command_line(folder: Path) -> None:
    written(folder, [ROW] * 4)
    (folder / "mine.py").write_text(
        "from vlmrl.data.card import Card\n"
        "class Mine(Card):\n"
        "    def rows(self, split):\n"
        "        return [{'id': split}]\n"
    )
    for text, name, split, count in [
        ("shapes:val", "shapes", "val", 96),
        ("shapes:train[:10]", "shapes", "train[:10]", 10),
        (str(folder), folder.name, "train", 4),
        (f"{folder}/train.jsonl", "train", "train", 4),
        (f"{folder}:train[1:3]", folder.name, "train[1:3]", 2),
        (f"{folder}/mine.py:Mine", "Mine", "train", 1),
        (f"{folder}/mine.py:Mine:test", "Mine", "test", 1),
    ]:
        source = open_target(text)
        assert (source.name, source.split, len(source.rows)) == (name, split, count)
    with pytest.raises(UserError, match="did you mean 'shapes'"):
        open_target("shaeps:train")


def test_encoded_pictures_of_any_kind_reach_the_prompt(folder: Path) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (6, 4), (1, 2, 3)).save(buffer, format="PNG")
    (folder / "b.png").write_bytes(buffer.getvalue())
    sample = table(folder, {"q": "?", "f": ["a.png", "b.png"], "a": "x"},
                   {"question": "q", "image": "f", "answer": "a"})  # fmt: skip
    sizes = [load_image(m, open_target(str(folder)).access).size for m in sample.media]
    assert sizes == [(100, 50), (6, 4)]
