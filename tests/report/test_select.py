"""`vlmrl data select`: rows of a run become a data set with media, or rows to attack a verifier with."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from starlette.testclient import TestClient

from helpers.report_page import begin_run, completion, config, row
from helpers.runs import ROOT, TINY
from vlmrl.cli.app import run as command_line
from vlmrl.data.source import open_target
from vlmrl.features.report.row_pages import heat_of
from vlmrl.features.report.watch_server import WatchedRuns, build_watch_app
from vlmrl.media.decode import decode
from vlmrl.runs import run_folder
from vlmrl.system import files
from vlmrl.truths.base import kinds
from vlmrl.truths.json_form import to_json

FRAME = {"width": 20, "height": 10, "space": "pixel"}


def said(box: list[int]) -> str:
    return f'<think>there</think><answer>{{"bbox_2d": {box}}}</answer>'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run with one image of 20 x 10 pixels; of its two rows one is asked twice."""
    made = begin_run(tmp_path / "mine")
    for step in (1, 2):
        right = completion(1.0, text=said([5, 5, 15, 10]))
        half = completion(0.5, text=said([5, 5, 10, 10]))
        masked = completion(0.9, text="<answer>", valid=False)
        group = [right, half, masked] if step == 1 else [right]
        rows = [row("a", group, frame=FRAME, template="think_answer")]
        rows += [row("b", [completion(0.0, text=said([0, 0, 4, 4]))], frame=FRAME)] * (step == 1)
        files.write_lines(run_folder.rollouts_path(made, step), rows)
    return made


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def select(folder: Path, *more: str) -> list[dict[str, Any]]:
    out = folder.parent / "taken" / "rows.jsonl"
    _run("data", "select", str(folder), "--out", str(out), *more)
    return lines_of(out)


def _run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        command_line([*arguments])
    return int(ended.value.code or 0)


def test_a_data_set_has_each_row_once_with_media_that_move_with_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = select(folder)
    assert [(line["id"], line["selected_from"]["step"]) for line in found] == [("a", 2), ("b", 1)]
    assert "2 rows, 1 media, 2 as the run stored them" in capsys.readouterr().out
    moved = (tmp_path / "taken").rename(tmp_path / "elsewhere") / "rows.jsonl"
    assert _run("data", "check", str(moved)) == 0
    source = open_target(str(moved))
    sample = source.sample(0)
    assert (sample.id, sample.text) == ("a", "Where is it?")
    (box,) = sample.truth.boxes or ()
    assert (box.xyxy, box.label) == ((0.25, 0.5, 0.75, 1.0), "ace")
    (image,) = decode(sample, source.access, source.reading)
    assert image.size == (20, 10)


def test_attack_rows_score_as_the_run_was_paid(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = select(folder, "--as", "attacks")
    # The answer of step 2 is one of step 1.
    assert [line.get("reward") for line in found] == [1.0, 0.5, None, 0.0]
    assert len({line["id"] for line in found}) == 4
    assert len({line["group"] for line in found}) == 2
    capsys.readouterr()
    assert _run("score", "box_iou", "--in", str(tmp_path / "taken/rows.jsonl")) == 0
    scores = [json.loads(line)["score"] for line in capsys.readouterr().out.splitlines()]
    assert scores == pytest.approx([1.0, 0.5, 0.0, 0.0])
    report = tmp_path / "report.json"
    attacked = ("--data", str(tmp_path / "taken/rows.jsonl"), "--out", str(report))
    assert _run("verify", "box_iou", *attacked) == 0
    assert [line["score"] for line in json.loads(report.read_text())["rows"]] == scores


def test_only_answers_that_fit_become_attacks(folder: Path) -> None:
    assert len(select(folder, "--as", "attacks", "--score", "0.4:0.6")) == 1
    assert len(select(folder, "--as", "attacks", "--failed")) == 1
    assert [line["id"] for line in select(folder, "--row", "b")] == ["b"]
    assert [line["id"] for line in select(folder, "--steps", "2:")] == ["a"]


def test_the_file_that_was_trained_on_is_taken_where_it_still_is(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    Image.new("RGB", (2000, 1000), "blue").save(data / "large.png")
    line = {"id": "r", "question": "What colour?", "answer": "blue", "images": ["large.png"]}
    files.write_lines(data / "train.jsonl", [line])
    run = tmp_path / "run"
    settings = config().model_dump(mode="json")
    settings["data"]["train"] = [
        {"card": "records", "name": "mine", "options": {"path": str(data)}}
    ]
    from vlmrl.config import parse

    run_folder.write_config(run, parse(settings))
    media = {"kind": "image", "start": None, "end": None, "thumbnail": "small.jpg"}
    inside = {**media, "name": str(data / "large.png")}
    outside = {**media, "name": str(tmp_path / "secret.png")}
    Image.new("RGB", (8, 8)).save(tmp_path / "secret.png")
    run_folder.media_folder(run).mkdir(parents=True)
    Image.new("RGB", (640, 320), "blue").save(run_folder.media_folder(run) / "small.jpg")
    truth = {"text": ["blue"], "none": False}
    rows = [
        row(name, [completion(1.0)], source="mine", media=[medium], truth=truth)
        for name, medium in (("in", inside), ("out", outside))
    ]
    files.write_lines(run_folder.rollouts_path(run, 1), rows)
    found = select(run)
    sizes = [Image.open(tmp_path / "taken" / line["images"][0]).size for line in found]
    assert sizes == [(2000, 1000), (640, 320)]


def test_every_kind_of_truth_comes_back(folder: Path, tmp_path: Path) -> None:
    examples = [
        (f"{name}-{number}", question, truth)
        for name, kind in kinds().items()
        if name != "track"
        for number, (question, truth) in enumerate(kind.examples())
    ]
    assert len(examples) > 12
    rows = [
        row(name, [completion(0.5)], question=question, truth=to_json(truth), frame=FRAME)
        for name, question, truth in examples
    ]
    files.write_lines(run_folder.rollouts_path(folder, 9), rows)
    select(folder, "--steps", "9")
    source = open_target(str(tmp_path / "taken/rows.jsonl"))
    for number, (name, question, truth) in enumerate(examples):
        sample = source.sample(number)
        assert (sample.id, sample.text) == (name, question)
        assert rounded(sample.truth) == rounded(truth), name


def rounded(truth: Any) -> Any:
    return json.loads(json.dumps(to_json(truth)), parse_float=lambda text: round(float(text), 9))


def test_mistakes_are_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    track = [{"time": 0.0, "box": {"box": [0, 0, 1, 1]}}]
    tracked = row("t", [completion(0.5)], truth={"track": {"track": track}})
    files.write_lines(run_folder.rollouts_path(folder, 7), [tracked])
    gone = row("g", [completion(0.5)], source="gone", frame=FRAME)
    gone["media"][0]["thumbnail"] = "gone.png"
    files.write_lines(run_folder.rollouts_path(folder, 8), [gone])
    for more, message in (
        (["--steps", "50:"], "none of the rows in rollouts/ fits"),
        (["--source", "shape"], "have no 'shape'; did you mean 'shapes'?"),
        (["--verifier", "box_io"], "have no 'box_io'; did you mean 'box_iou'?"),
        (["--row", "c"], "rollouts/ has no row 'c'"),
        (["--score", "x"], "--score: expected a range such as"),
        (["--row", "t"], "no row states a truth of kind track"),
        (["--row", "g"], "its file is not there, and the run has no copy"),
    ):
        out = str(tmp_path / "none.jsonl")
        assert _run("data", "select", str(folder), "--out", out, *more) == 2
        assert message in capsys.readouterr().err and not Path(out).exists()


def test_the_page_gives_the_same_selection(folder: Path, tmp_path: Path) -> None:
    client = TestClient(build_watch_app(WatchedRuns(folder), None, ("testserver",)))
    attacks = client.get("/run/mine/rows.jsonl", params={"least": "0.4"})
    own = select(folder, "--as", "attacks", "--score", "0.4:")
    assert [json.loads(line) for line in attacks.text.splitlines()] == own and len(own) == 2
    packed = client.get("/run/mine/rows.zip")
    with zipfile.ZipFile(io.BytesIO(packed.content)) as archive:
        archive.extractall(tmp_path / "unpacked")
    assert lines_of(tmp_path / "unpacked/rows.jsonl") == select(folder)
    assert _run("data", "check", str(tmp_path / "unpacked/rows.jsonl")) == 0


@pytest.mark.slow
def test_rows_of_a_real_run_are_told_trained_on_and_attacked_with(tmp_path: Path) -> None:
    run = tmp_path / "first"
    tiny = [*TINY, "run.steps=2", "run.rollouts_every=1", "evaluation=null", "run.save_every=2"]
    tiny.remove("run.steps=5")
    quickstart = str(ROOT / "configs/quickstart.yaml")
    assert _run("train", quickstart, *tiny, f"run.dir={run}") == 0
    stored = [line for step in (1, 2) for line in lines_of(run / f"tokens/step-{step}.jsonl")]
    rows = [line for step in (1, 2) for line in lines_of(run / f"rollouts/step-{step}.jsonl")]
    trained_on = 0
    for row_, told in zip(rows, stored, strict=True):
        assert (row_["source"], row_["id"]) == (told["source"], told["id"])
        for one, of in zip(row_["completions"], told["completions"], strict=True):
            heat = heat_of(of, [one["tokens"]])
            assert heat is not None and of["engine"] is not None
            assert (of["trainer"] is not None) == one["kept"]
            if one[
                "kept"
            ]:  # the same weights on the same tokens, sampled with no cache of rounding
                trained_on += 1
                assert of["trainer"] == pytest.approx(of["engine"], abs=2e-3)
    assert trained_on > 10
    client = TestClient(build_watch_app(WatchedRuns(run), None, ("testserver",)))
    first = rows[0]
    place = {"source": first["source"], "id": first["id"], "step": "1"}
    assert "Engine and trainer part by" in client.get("/run/first/row", params=place).text
    taken = tmp_path / "taken/rows.jsonl"
    assert len(select(run)) == len({line["id"] for line in rows})
    more = [f"data.train=[{taken}]", "sft.max_steps=1", f"run.dir={tmp_path / 'second'}"]
    assert _run("train", quickstart, *tiny, *more) == 0
    assert (tmp_path / "second/summary.json").is_file()
    select(run, "--as", "attacks")
    assert _run("verify", "box_iou", "--data", str(taken)) == 0
