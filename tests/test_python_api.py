"""`from vlmrl import train, ...`: the functions give what the commands give, and importing them is light."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import vlmrl
from helpers.chat_calls import RED
from helpers.runs import TINY, final_state, metric_lines
from vlmrl.cli.app import run as run_command
from vlmrl.config import Config
from vlmrl.errors import UserError
from vlmrl.runs.run_log import SILENT
from vlmrl.truths.json_form import to_json

ROOT = Path(__file__).parents[1]
ROW = {
    "completion": "<answer>[10, 10, 50, 50]</answer>",
    "truth": {"boxes": [{"box": [8, 8, 50, 50]}]},
    "media": {"width": 100, "height": 80},
}


def command(*arguments: str) -> None:
    with pytest.raises(SystemExit) as end:
        run_command(arguments)
    assert not end.value.code


def config(folder: Path, *more: str) -> Config:
    return vlmrl.load("quickstart", f"run.dir={folder}", *TINY, *more)


def test_the_package_and_the_functions_import_without_torch() -> None:
    program = (
        "import sys, vlmrl; before = set(sys.modules); from vlmrl import Run, load, train, evaluate, "
        "generate, score, sweep, verify; load('quickstart', 'run.steps=3'); "
        "print({'torch', 'transformers', 'numpy', 'pydantic', 'vlmrl.api'} & before, "
        "{'torch', 'transformers'} & set(sys.modules))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "set() set()"
    with pytest.raises(AttributeError, match="'vlmrl' has no attribute 'trian'"):
        vlmrl.trian  # noqa: B018


def test_a_config_is_checked_whole_when_it_is_loaded() -> None:
    assert vlmrl.load("quickstart", "run.steps=3", "algorithm=dr_grpo").algorithm.name == "dr_grpo"
    with pytest.raises(UserError, match="algorithm"):
        vlmrl.load("quickstart", "algorithm=grop")


@pytest.mark.slow
def test_a_loop_over_a_run_that_is_left_and_goes_on_is_what_the_command_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command("train", "quickstart", f"run.dir={tmp_path / 'whole'}", *TINY)
    left = vlmrl.Run(config(tmp_path / "run"), SILENT)
    assert left.summary is None and left.metrics == [] and left.checkpoints == []
    for step in left:
        assert len(left.metrics) == step.step  # it is written when it comes
        if step.step == 3:
            break
    assert left.summary is not None and not left.summary["finished"]
    assert left.checkpoints[-1].name == "step-3" and sorted(left.evaluations) == [0, 2]
    seen: list[int] = []
    run = vlmrl.train(
        config(tmp_path / "run", "resume=auto"),
        on_step=lambda step: seen.append(step.step),
        output=SILENT,
    )
    assert seen == [4, 5] and run.summary is not None and run.summary["finished"]
    assert final_state(tmp_path / "run") == final_state(tmp_path / "whole")
    assert metric_lines(tmp_path / "run") == metric_lines(tmp_path / "whole")
    assert list(vlmrl.Run(config(tmp_path / "run", "resume=auto"), SILENT)) == []  # it is finished
    capsys.readouterr()
    # A model of a run: evaluated as the command does it.
    command(
        "eval",
        str(run.folder),
        "--data",
        "shapes:test",
        "--limit",
        "4",
        "--out",
        str(tmp_path / "out"),
    )
    result = vlmrl.evaluate(run, "shapes:test", limit=4)
    by_command = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert to_json(result["metrics"]) == by_command["metrics"]
    assert to_json(result["intervals"]) == by_command["intervals"]


@pytest.mark.slow
def test_an_error_in_the_loop_saves_the_steps_before_it(tmp_path: Path) -> None:
    run = vlmrl.Run(config(tmp_path / "run", "run.save_every=5"), SILENT)
    with pytest.raises(ZeroDivisionError):
        for step in run:
            1 / (1 - step.step)
    assert run.checkpoints[-1].name == "step-1"


@pytest.mark.slow
def test_verdicts_and_attacks_are_those_of_the_commands(tmp_path: Path) -> None:
    rows = [ROW, {**ROW, "completion": "<answer>nothing</answer>"}]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command("score", "box_iou", "--in", str(file), "--out", str(tmp_path / "verdicts.jsonl"))
    by_command = [json.loads(line) for line in (tmp_path / "verdicts.jsonl").open()]
    verdicts = vlmrl.score("box_iou", rows)
    assert [verdict.score for verdict in verdicts] == [line["score"] for line in by_command]
    assert verdicts[0].score == pytest.approx(1600 / 1764)
    assert vlmrl.score("box_iou", rows[:1], threshold=0.95)[0].score == 0.0
    with pytest.raises(UserError, match="unknown key 'completoin'"):
        vlmrl.score("box_iou", [{"completoin": ""}])
    near = tmp_path / "near.py"
    near.write_text("def score(answer, truth):\n    return float(int(answer) == truth.number)\n")
    with pytest.raises(SystemExit) as end:
        run_command(["verify", f"{near}:score", "--out", str(tmp_path / "report.json")])
    assert end.value.code == 1
    written = json.loads((tmp_path / "report.json").read_text())
    report = vlmrl.verify(f"{near}:score").as_json()
    assert report["findings"] == written["findings"] and report["rows"] == written["rows"]


@pytest.mark.nightly
def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    page = (ROOT / "docs/start/python.md").read_text("utf-8")
    examples = re.findall(r'^```python title="([^"]*)"\n(.*?)^```$', page, re.MULTILINE | re.DOTALL)
    assert [title for title, _ in examples] == ["steps.py", "sweep.py", "ask.py", "judge.py"]
    RED.save(tmp_path / "photo.png")
    printed = {}
    for title, text in examples:
        (tmp_path / title).write_text(text)
        ran = subprocess.run(
            [sys.executable, title],
            cwd=tmp_path,
            env=dict(os.environ, PYTHONPATH=str(ROOT)),
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0, ran.stderr
        printed[title] = ran.stdout.splitlines()
    assert [line[0] for line in printed["steps.py"] if re.match(r"\d 0\.", line)] == [*"1234"]
    assert printed["steps.py"][-1].startswith("runs/python/checkpoints/step-4 ")
    assert "| lr | box_iou first | last | gain | vs first | CPU s | tokens |" in printed["sweep.py"]
    assert len(json.loads(printed["sweep.py"][-1])) == 2
    assert len(printed["ask.py"]) >= 2
    box, overlap, findings = printed["judge.py"]
    assert (box, findings) == ("(0.1, 0.125, 0.5, 0.625)", "()")
    assert float(overlap) == pytest.approx(1600 / 1764)
