"""Records with pixel boxes: the example data, named errors, splits; and `vlmrl data check|explain`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

from helpers.example_data import EXAMPLE_DATA
from vlmrl.config import SourceConfig
from vlmrl.data.card import select
from vlmrl.data.example_data import EXAMPLES
from vlmrl.data.source import Source, open_source, open_target
from vlmrl.errors import MediaError, UserError
from vlmrl.features.check.data_check import check_and_print, check_rows, explain, list_cards
from vlmrl.media.decode import decode
from vlmrl.schema import Truth
from vlmrl.schema.media import Audio

KINDS = ("images", "videos", "audios")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_every_row_of_the_example_data_becomes_a_sample(name: str) -> None:
    for file in (EXAMPLE_DATA / name).glob("*.jsonl"):
        source = open_source(SourceConfig(card=str(EXAMPLE_DATA / name), split=file.stem))
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        assert len(source.rows) == len(rows)
        for i, row in enumerate(rows):
            sample = source.sample(i)
            assert sample.id == row["id"]
            assert [Path(m.path or "").name for m in sample.media] == [
                Path(p).name for kind in KINDS for p in row.get(kind, [])
            ]
            assert "pixels" not in sample.text and "as [start" not in sample.text
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
    elif truth.spans is not None:
        assert [[span.start, span.end] for span in truth.spans] == [row["span"]]
        assert json.loads(row["answer"]) == row["span"]
    elif "count" in row:
        assert truth == Truth(number=int(row["answer"]))
    elif truth.choice is not None:
        assert truth.choice == row["answer"]
        assert list(truth.options or ()) == row["options"] if "options" in row else True
        assert len(truth.options or ()) in (2, 3, 4, 6)
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
        assert demo and demo.answer and demo.answer.boxes
        pushed.add(round(0.1 - demo.answer.boxes[0].x1, 6))
    assert pushed == {0, 0.05, 0.1}


def test_a_demonstration_grows_to_the_lines_of_a_grid(folder: Path) -> None:
    row = ROW | {"boxes": [[11, 5, 60, 44]], "answer": "[11, 5, 60, 44]"}
    sample = records(folder, [row], grid=20).sample(0)
    for found, xyxy in [
        (sample.truth.boxes, (0.11, 0.1, 0.6, 0.88)),
        (sample.demo.answer.boxes, (0.1, 0.1, 0.6, 0.9)),
    ]:
        assert [box.xyxy for box in found] == [pytest.approx(xyxy)]
    with pytest.raises(UserError, match="grid: expected a number of cells or 0, got -1"):
        records(folder, [ROW], grid=-1)


def test_nothing_to_find_is_declared(folder: Path) -> None:
    truth = records(folder, [ROW | {"answer": "[]", "boxes": [], "labels": []}]).sample(0).truth
    assert truth == Truth(boxes=(), none=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"boxes": [[10, 5, 160, 45]]}, r"box \[10, 5, 160, 45\] lies outside 0..100 x 0..50"),
        ({"boxes": [[60, 5, 10, 45]]}, "x1 < x2"),
        ({"boxes": [[1, 2, 3]]}, "truth.boxes: expected 4 numbers for a box"),
        ({"boxes": [[1, 2, "3", 4]]}, "truth.boxes: expected a finite number"),
        ({"boxes": [[1, 2, float("nan"), 4]]}, "truth.boxes: expected a finite number"),
        ({"boxes": "none"}, "key 'boxes': expected a list"),
        ({"labels": ["dog", "cat"]}, "key 'labels': expected 1 labels, got"),
        ({"width": None}, "keys 'width', 'height'"),
        ({"question": ""}, "key 'question'"),
        ({"answer": None}, "key 'answer'"),
        ({"id": None}, "key 'id'"),
        ({"images": "a.png"}, "key 'images'"),
        ({"images": [], "videos": "a.mp4"}, "key 'videos': expected a list of paths"),
        ({"options": ["a", "b"], "answer": "C"}, "key 'answer': 'C' is none of the options"),
        ({"options": ["a", 2], "answer": "A"}, "key 'options': expected a list of texts"),
        (
            {"question": "Which? Answer with one of: cat, cow.", "answer": "dog"},
            "key 'answer': expected one of the options cat, cow, got 'dog'",
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


# ------------------------------------------------------------------------------------------ check


def test_bad_rows_are_summed_up_by_cause(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = [ROW | {"id": f"m{n}", "images": [f"b{n}.png"]} for n in range(3)]
    beyond = [ROW | {"id": f"x{n}", "boxes": [[0, 0, 400 + n, 9]]} for n in range(2)]
    assert check_and_print([records(folder, [ROW, *missing, *beyond])]) == 5
    lines = [line for line in capsys.readouterr().out.splitlines() if " rows: " in line]
    assert lines[0].startswith("bad  3 rows: ") and "no such file" in lines[0]
    assert lines[1].startswith("bad  2 rows: ") and len(lines) == 2


def test_questions_that_say_how_to_answer_are_warned_of(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = ROW | {"id": "r2", "question": "Where? Put it in <answer> tags."}
    check_and_print([records(folder, [ROW, told])])
    assert "1 questions already say how to answer, the first is r2 ('<answer>')" in (
        capsys.readouterr().out
    )


def test_check_reports_every_row_as_training_would_see_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = ROW | {"id": "r2", "images": ["b.png"]}
    source = records(folder, [ROW, missing, "{", ROW | {"id": "r4", "boxes": []}])
    good, gone, broken, empty = (row.line for row in check_rows(source))
    assert good == {
        "id": "r1",
        "missing": [],
        "ok": True,
        "reason": None,
        "turns": 0,
        "says_how": None,
        "hides_options": False,
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
    assert check_and_print([source], out) == 3
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


def test_a_folder_with_the_name_of_a_card_does_not_stand_in_its_way(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "shapes").mkdir()
    written(folder / "shapes", [ROW])
    monkeypatch.chdir(folder)
    assert open_target("shapes:val").sample(0).id == "shapes-grounding-val-0"
    assert open_target("./shapes").sample(0).id == "r1"


def test_spoken_digits_are_told_by_their_names_and_divided_as_published(tmp_path: Path) -> None:
    for name in ("7_jackson_4", "7_jackson_5", "0_theo_49", "seq_1", "10_theo_3"):
        soundfile.write(tmp_path / f"{name}.wav", np.zeros(4000, np.float32), 8000)
    options = {"path": str(tmp_path)}
    train, test = (
        open_source(SourceConfig(card="spoken_digits", split=split, options=options))
        for split in ("train", "test")
    )
    ids = [[source.sample(i).id for i in range(len(source.rows))] for source in (train, test)]
    assert ids == [["0_theo_49", "7_jackson_5"], ["7_jackson_4"]]
    sample = test.sample(0)
    assert sample.truth == Truth(text=("7",), number=7.0)
    (audio,) = decode(sample, test.access)
    assert isinstance(audio, Audio) and audio.duration == 0.5
    with pytest.raises(UserError, match="no split 'val'"):
        open_source(SourceConfig(card="spoken_digits", split="val", options=options))
    nowhere = {"path": str(tmp_path / "absent")}
    with pytest.raises(UserError, match=r"absent has no audio file.*free-spoken-digit-dataset"):
        open_source(SourceConfig(card="spoken_digits", options=nowhere))


def test_sequences_of_digits_are_one_take_of_one_speaker_end_to_end(tmp_path: Path) -> None:
    names = [f"{d}_{who}_{take}" for d in range(10) for who in ("jo", "theo") for take in (1, 5, 6)]
    waves = {}
    for number, name in enumerate(names):
        waves[name] = np.full(1600 + 8 * number, (number + 1) / 100, np.float32)
        soundfile.write(tmp_path / f"{name}.wav", waves[name], 16000, subtype="PCM_16")
    options = {"path": str(tmp_path), "longest": 3}
    sources = {
        split: open_source(SourceConfig(card="spoken_digits", split=split, options=options))
        for split in ("train", "test", "train[:50%]", "train[50%:]")
    }
    seen: dict[str, set[str]] = {}
    lengths = set()
    for split, source in sources.items():
        rows = range(len(source.rows))
        samples = [source.sample(index) for index in rows]
        seen[split] = {name for index in rows for name in source.rows[index]["files"]}
        assert [s.id for s in samples] == [source.sample(index).id for index in rows]
        for sample, row in zip(samples, source.rows, strict=True):
            parts = [waves[name.removesuffix(".wav")] for name in row["files"]]
            (audio,) = decode(sample, source.access)
            assert isinstance(audio, Audio) and len({name[1:] for name in row["files"]}) == 1
            np.testing.assert_allclose(audio.samples, np.concatenate(parts), atol=1e-4)
            assert sample.truth == Truth(text=(" ".join(name[0] for name in row["files"]),))
            lengths.add(len(parts))
    assert lengths == {1, 2, 3} and len(sources["train"].rows) == 40
    assert not seen["train"] & seen["test"] and not seen["train[:50%]"] & seen["train[50%:]"]
    with pytest.raises(UserError, match="longest: expected at least 1 digit, got 0"):
        open_source(SourceConfig(card="spoken_digits", options={**options, "longest": 0}))


def test_mmau_as_it_is_published(tmp_path: Path) -> None:
    row = {
        "id": "a1",
        "audio_id": "./test-mini-audios/a1.wav",
        "question": "What is heard first?",
        "choices": ["A dog", "Rain", "A horn", "Speech"],
        "answer": "Rain",
        "task": "sound",
        "difficulty": "easy",
    }
    (tmp_path / "test-mini-audios").mkdir()
    soundfile.write(tmp_path / "test-mini-audios/a1.wav", np.zeros(8000, np.float32), 16000)
    file = tmp_path / "mmau-test-mini.json"
    file.write_text(json.dumps([row, {**row, "answer": "Wind"}]))
    source = open_source(SourceConfig(card="mmau", split="test", options={"path": str(file)}))
    sample = source.sample(0)
    assert sample.truth == Truth(choice="B", options=("A dog", "Rain", "A horn", "Speech"))
    assert sample.text == "What is heard first?\nA. A dog\nB. Rain\nC. A horn\nD. Speech"
    assert sample.meta == {"task": "sound", "difficulty": "easy"}
    (audio,) = decode(sample, source.access)
    assert isinstance(audio, Audio) and audio.duration == 0.5
    with pytest.raises(UserError, match="'Wind' is none of the options"):
        source.sample(1)
    file.write_text("{")
    with pytest.raises(UserError, match=r"mmau-test-mini\.json: cannot be read as JSON"):
        open_source(SourceConfig(card="mmau", split="test", options={"path": str(file)}))


def test_avqa_as_it_is_published(tmp_path: Path) -> None:
    row = {
        "id": 183,
        "video_name": "-HG3Omg_89c_000030",
        "video_id": 341,
        "question_text": "What happened in the video?",
        "multi_choice": ["motorboat", "sailing", "rowing", "swimming"],
        "answer": 1,
        "question_relation": "View",
        "question_type": "Happening",
    }
    (tmp_path / "train_qa.json").write_text(json.dumps([row, {**row, "answer": 4}]))
    soundfile.write(tmp_path / "-HG3Omg_89c_000030.wav", np.zeros(8000, np.float32), 16000)
    source = open_source(SourceConfig(card="avqa", options={"path": str(tmp_path)}))
    sample = source.sample(0)
    assert sample.truth == Truth(choice="B", options=tuple(row["multi_choice"]))
    assert sample.text.endswith("A. motorboat\nB. sailing\nC. rowing\nD. swimming")
    (audio,) = decode(sample, source.access)
    assert isinstance(audio, Audio) and audio.duration == 0.5
    with pytest.raises(UserError, match="4 is none of the options"):
        source.sample(1)
    with pytest.raises(UserError, match=r"val_qa\.json: cannot be read"):
        open_source(SourceConfig(card="avqa", split="val", options={"path": str(tmp_path)}))
