"""What the log writes and prints: one line a step, also after a resume, and no rich markup."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from vlmrl.config import Config, parse
from vlmrl.config.sections.run import hide_secrets
from vlmrl.errors import UserError
from vlmrl.runs import run_folder
from vlmrl.runs.output.outputs import Lines
from vlmrl.runs.run_log import RunLog
from vlmrl.schema import Advantages, PromptBatch, Rewards, Rollouts, StepReport
from vlmrl.system import files

METRICS = {
    "reward/mean": 0.612,
    "reward/box_iou": 0.512,
    "source/shapes/reward": 0.612,
    "source/shapes/box_iou": 0.512,
    "source/cell photos/reward": 0.25,
    "rollout/uniform_share": 0.125,
    "time/data": 0.01,
    "time/generate": 0.15,
    "time/reward": 0.0,
    "time/update": 0.04,
}
RESULT = {
    "metrics": {"reward": 0.5, "box_iou": 0.44, "shapes/box_iou": 0.44},
    "intervals": {"reward": [0.47, 0.53], "box_iou": [0.41, 0.47], "shapes/box_iou": [0.41, 0.47]},
    "num_samples": 48,
}


def config(**tracking: Any) -> Config:
    return parse(
        {
            "model": {"path": "m"},
            "data": {"train": ["shapes"]},
            "rewards": ["box_iou"],
            "sft": {"max_steps": 100},
            "tracking": {"tensorboard": False, **tracking},
        }
    )


def report(step: int, **metrics: float) -> StepReport:
    nothing = torch.zeros(0, 0)
    return StepReport(
        step,
        {**METRICS, **metrics},
        Rollouts(PromptBatch(()), ()),
        Rewards(nothing, nothing, ()),
        Advantages(nothing, nothing, nothing),
    )


def curve(path: Path) -> list[tuple[int, float]]:
    return [(line["step"], line["reward/mean"]) for line in files.read_lines(path)]


def test_every_step_is_one_line(tmp_path: Path) -> None:
    with RunLog(config(), tmp_path, total_steps=3) as tracker:
        for step in (1, 2, 3):
            tracker.step(report(step, **{"reward/mean": step / 10}))
    assert curve(run_folder.metrics_path(tmp_path)) == [(1, 0.1), (2, 0.2), (3, 0.3)]


def test_a_resumed_run_replaces_the_steps_after_its_checkpoint(tmp_path: Path) -> None:
    with RunLog(config(), tmp_path, total_steps=9) as tracker:
        for step in (1, 2, 3, 4, 5):
            tracker.step(report(step, **{"reward/mean": 0.1}))
    with RunLog(config(), tmp_path, total_steps=9, step=3) as tracker:
        tracker.step(report(4, **{"reward/mean": 0.9}))
    assert curve(run_folder.metrics_path(tmp_path)) == [(1, 0.1), (2, 0.1), (3, 0.1), (4, 0.9)]


def test_a_cold_start_that_begins_again_replaces_its_curve(tmp_path: Path) -> None:
    for value in (3.0, 2.0):
        with RunLog(config(), tmp_path, total_steps=1) as tracker:
            tracker.sft_step(1, {"loss/total": value})
            tracker.sft_step(2, {"loss/total": value})
    with RunLog(config(), tmp_path, total_steps=1) as tracker:
        tracker.sft_step(2, {"loss/total": 1.0})
    lines = files.read_lines(run_folder.sft_path(tmp_path))
    assert [(x["step"], x["loss/total"]) for x in lines] == [(1, 2.0), (2, 1.0)]


def test_a_number_that_is_not_finite_is_written_as_null(tmp_path: Path) -> None:
    with RunLog(config(), tmp_path, total_steps=1) as tracker:
        tracker.step(report(1, **{"update/grad_norm": float("nan"), "loss/kl": float("inf")}))
    (line,) = files.read_lines(run_folder.metrics_path(tmp_path))
    assert line["update/grad_norm"] is None and line["loss/kl"] is None


def test_tensorboard_keeps_the_phases_apart_and_forgets_what_a_resume_redoes(
    tmp_path: Path,
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with RunLog(config(tensorboard=True), tmp_path, total_steps=4) as tracker:
        tracker.sft_step(7, {"loss/total": 2.0})
        for step in (1, 2, 3):
            tracker.step(report(step, **{"reward/mean": 0.25}))
    with RunLog(config(tensorboard=True), tmp_path, total_steps=4, step=1) as tracker:
        tracker.step(report(2, **{"reward/mean": 0.5}))
        tracker.evaluation({2: RESULT}, 0.5)
    events = EventAccumulator(str(tmp_path / "tensorboard/rl")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("reward/mean")] == [(1, 0.25), (2, 0.5)]
    assert events.Scalars("evaluation/reward")[0].value == 0.5
    sft = EventAccumulator(str(tmp_path / "tensorboard/sft")).Reload()
    assert [(e.step, e.value) for e in sft.Scalars("loss/total")] == [(7, 2.0)]


@pytest.mark.parametrize("service", ["wandb", "trackio", "mlflow", "swanlab", "tensorboard"])
def test_a_missing_service_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: str
) -> None:
    monkeypatch.setitem(sys.modules, service, None)  # Python's way to say "not installed"
    with (
        pytest.raises(
            UserError, match=rf"tracking\.{service}: .*pip install 'vlmrl-.*\[{service}\]'"
        ),
        RunLog(config(**{service: {}}), tmp_path, total_steps=1),
    ):
        pass
    assert not run_folder.metrics_path(tmp_path).exists()


FAILING = """
from dataclasses import dataclass
from vlmrl.runs.tracker import Tracker

@dataclass
class Failing(Tracker):
    at_start: bool = False
    api_key: str = ""

    def start(self, run):
        assert "hunter2" not in str(run.config)
        if self.at_start:
            raise ConnectionError("no route to host")

    def log(self, phase, step, metrics):
        if step > 1:
            raise ConnectionError("no route to host")

    def close(self):
        raise ConnectionError("no route to host")
"""


@pytest.mark.parametrize("at_start", [False, True])
def test_a_tracker_that_fails_costs_a_line_and_a_count_but_never_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], at_start: bool
) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    name = f"{tmp_path}/failing.py:Failing"
    settings = config(**{name: {"at_start": at_start}})
    with RunLog(settings, tmp_path / "run", 3, output=Lines()) as log:
        for step in (1, 2, 3):
            log.step(report(step))
        log.evaluation({3: RESULT}, 0.5)
    assert len(curve(run_folder.metrics_path(tmp_path / "run"))) == 3
    lines = [x for x in capsys.readouterr().out.splitlines() if x.startswith("tracker")]
    said = "ConnectionError: no route to host"
    unclosed = f"tracker {name!r} did not close: {said}"
    if at_start:
        assert lines == [f"tracker {name!r} is off: {said}", unclosed]
    else:
        lost = f"tracker {name!r} lost a report: {said}"
        assert lines == [lost, unclosed, f"tracker {name!r} lost 3 reports"]


def test_a_secret_in_an_option_is_neither_written_nor_sent(tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    settings = config(
        **{
            f"{tmp_path}/failing.py:Failing": {"api_key": "hunter2"},
            "mlflow": {"uri": "https://me:hunter2@tracking.example/store"},
        }
    )
    run_folder.write_config(tmp_path, settings)
    written = (tmp_path / "config.json").read_text()
    assert "hunter2" not in written and "https://***@tracking.example/store" in written
    del settings.tracking["mlflow"]
    with RunLog(settings, tmp_path / "run", 1) as log:
        log.message("started")


def test_secrets_are_hidden_by_name_and_by_value_in_every_section(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", "correct-horse-battery")
    monkeypatch.setenv("EMPTY_TOKEN", "none")
    known = ["hf_" + "a1B2" * 8, "sk-proj-" + "x" * 20, "ghp_" + "0" * 36, "correct-horse-battery"]
    options = {
        "api_key": "hunter2",
        "key": "label",
        "max_tokens": 12,
        "api_key_env": "JUDGE_API_KEY",
    }
    tree = {
        "rewards": [{"options": {**options, "header": f"Bearer {value}"}} for value in known],
        "model": {"path": "https://me:hunter2@hub.example/none", "token": "hunter2"},
    }
    hidden = hide_secrets(tree)
    assert all(value not in str(hidden) for value in (*known, "hunter2"))
    assert [r["options"] for r in hidden["rewards"]] == [
        {**options, "api_key": "***", "header": "Bearer ***"} for _ in known
    ]
    assert hidden["model"] == {"path": "https://***@hub.example/none", "token": "***"}


def test_a_log_gets_a_line_every_few_steps_with_the_main_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RunLog(config(), tmp_path, total_steps=150, output=Lines()) as tracker:
        for step in range(1, 151):
            tracker.step(report(step))
        worse = {**RESULT, "metrics": {"reward": 0.375}}
        tracker.evaluation({0: worse, 150: RESULT}, 1.25)
    title, *steps, evaluation = capsys.readouterr().out.splitlines()
    assert title == f"run · grpo · {tmp_path}"
    assert [int(re.match(r"step +(\d+)/150", line)[1]) for line in steps] == [
        1,
        *range(10, 151, 10),
    ]
    assert "reward 0.612" in steps[0] and "shapes: reward 0.612 box_iou 0.512" in steps[0]
    assert "cell photos: reward 0.250" in steps[0] and "uniform groups 12%" in steps[0]
    assert "0.20 s (data 5% generate 75% update 20%)" in steps[0]
    assert evaluation == (
        "evaluation at step 150  reward 0.500 [0.470, 0.530]  +0.125 since the first  "
        "best 0.500 at step 150  48 samples  1.2 s  box_iou 0.440"
    )


def test_a_log_line_is_never_folded_nor_read_as_markup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "[bold red]kept[/nothing] " + "word " * 60
    with RunLog(config(), tmp_path, total_steps=1, output=Lines()) as tracker:
        tracker.message(text)
    assert capsys.readouterr().out.splitlines()[1:] == [text]
