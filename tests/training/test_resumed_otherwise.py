"""A resume says what has changed since: in config, rows and media; what it may not take it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from helpers.runs import TINY
from vlmrl.cli.app import app
from vlmrl.features.report.page import build_report

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run that has ended on rows of a file, and the file."""
    home = tmp_path_factory.mktemp("home")
    Image.new("RGB", (56, 56), (200, 30, 30)).save(home / "a.png")
    rows = [{"image": "a.png", "question": f"What is {n}?", "answer": str(n)} for n in range(8)]
    data = home / "train.jsonl"
    data.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert "finished" in train(home / "run", data)
    return home / "run", data


def train(folder: Path, data: Path, *more: str) -> str:
    columns = "{image: image, question: question, answer: answer}"
    source = f"{{card: table, options: {{path: {data}, columns: {columns}}}, name: mine}}"
    own = (f"data.train=[{source}]", "rewards=[text]", "evaluation=null", f"run.dir={folder}")
    command = ["train", "quickstart", *TINY, *own, "run.steps=2", *more]
    done = CliRunner().invoke(app, command)
    if done.exception and not isinstance(done.exception, SystemExit):
        return str(done.exception)
    return done.output + " finished" * (done.exit_code == 0)


@pytest.fixture
def again(run: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """Copies of the run and its data."""
    shutil.copytree(run[0], tmp_path / "run")
    shutil.copytree(run[1].parent, tmp_path / "data", ignore=shutil.ignore_patterns("run"))
    return tmp_path / "run", tmp_path / "data/train.jsonl"


def starts(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "starts.jsonl").read_text().splitlines()]


def test_a_run_that_ended_goes_on_and_says_what_changed(again: tuple[Path, Path]) -> None:
    folder, data = again
    output = train(folder, data, "resume=auto", "run.steps=3", "optimizer.lr=1e-5")
    assert "the run had ended after step 2 and goes on to 3" in output
    assert "optimizer.lr was" in output and output.endswith("finished")
    first, second = starts(folder)
    assert first["changed"] == [] and first["step"] == 0
    assert second["step"] == 2 and second["config"]["run"]["steps"] == 3
    assert any(line.startswith("optimizer.lr was") for line in second["changed"])
    moved = [line for line in second["changed"] if line.startswith("data.train.mine.options.path")]
    assert moved and first["sources"] == second["sources"]
    page = build_report(folder).read_text()
    assert "Resumed after step 2" in page and "run.steps was 2, is 3" in page


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("model.build.family=qwen2_vl", "model.build.family"),
        ("model.freeze=[vision]", "model.freeze"),
        ("run.seed=5", "run.seed"),
    ],
)
def test_a_fixed_key_is_refused_before_anything_is_written(
    again: tuple[Path, Path], override: str, key: str
) -> None:
    folder, data = again
    before = (folder / "config.json").read_bytes()
    output = train(folder, data, "resume=auto", "run.steps=3", override)
    assert output.startswith(f"resume: {key} was ") and f"resume.allow=[{key}]" in output
    assert (folder / "config.json").read_bytes() == before and len(starts(folder)) == 1


def test_other_texts_and_media_of_as_many_rows_are_refused(again: tuple[Path, Path]) -> None:
    folder, data = again
    text = data.read_text()
    data.write_text(text.replace("What is 3?", "What is 4?"))
    output = train(folder, data, "resume=auto", "run.steps=3")
    assert output.startswith("resume: data.train.mine was rows 8 (")
    allowed = train(folder, data, "resume=auto", "run.steps=3", "resume.allow=[data.train]")
    assert allowed.endswith("finished")
    Image.new("RGB", (56, 56), (0, 30, 30)).save(data.parent / "a.png")
    assert "data.train.mine was rows 8 (" in train(folder, data, "resume=auto", "run.steps=4")


def test_more_rows_pass_where_they_are_allowed(again: tuple[Path, Path]) -> None:
    folder, data = again
    data.write_text(data.read_text() * 2)
    assert train(folder, data, "resume=auto", "run.steps=3").startswith("resume: data.train.mine")
    allowed = train(folder, data, "resume=auto", "run.steps=3", "resume.allow=[data.train.mine]")
    assert allowed.endswith("finished")
