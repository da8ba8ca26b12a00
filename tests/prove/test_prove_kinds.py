"""`vlmrl prove` on rollouts ahead of the trainer, two ranks and tools: the outcome, and the reason named."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch

from helpers import asking_engine, clock_tools, copy_engine
from helpers.runs import ROOT, TINY, torchrun
from vlmrl.cli.app import run as command_line
from vlmrl.config import load
from vlmrl.features.prove.prove import find_unsteady_calls, list_inexact, list_unfinished
from vlmrl.runs import run_folder

AHEAD = (
    "rollout.max_staleness=2",
    f"engine.name={copy_engine.__file__}:DrainedEngine",
    "evaluation=null",
)
ASKING = (
    f"engine.name={asking_engine.__file__}:AskingHf",
    "checks={parity_every: 0, media_ablation_every: 0}",  # it does not write what it samples
    "sft=null",
    "evaluation=null",
)


@pytest.fixture(autouse=True)
def _processes_find_the_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        command_line(list(arguments))
    assert isinstance(left.value.code, int)
    return left.value.code


def train(config: str, folder: Path, *more: str) -> None:
    assert call("train", config, f"run.dir={folder}", *TINY, *more) == 0


def change_a_loss(run: Path, to: Path) -> Path:
    """Copy a run with another number in its last line of metrics."""
    shutil.copytree(run, to)
    lines = run_folder.read_metrics(to)
    lines[-1]["loss/total"] += 1e-9
    (to / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return to


@pytest.mark.nightly
def test_rollouts_ahead_of_the_trainer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    train("quickstart", run, *AHEAD)
    assert run_folder.read_metrics(run)[-1]["rollout/staleness"] == 2
    assert call("prove", str(run)) == 0
    said = capsys.readouterr().out
    assert f"EQUAL: steps 5 to 5 of {run}" in said and "differ" not in said
    assert call("prove", str(change_a_loss(run, tmp_path / "changed"))) == 1
    said = capsys.readouterr().out
    assert "NOT EQUAL" in said
    assert "which weights sample a token depends on time" in said


@pytest.mark.nightly
def test_two_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    done = torchrun("-m", "vlmrl", "train", "quickstart", f"run.dir={run}", *TINY)
    assert done.returncode == 0, done.stderr
    assert call("prove", str(run)) == 0
    said = capsys.readouterr().out
    assert f"EQUAL: steps 5 to 5 of {run}, run again on 2 ranks from checkpoint step-4" in said
    assert "differ" not in said and "none to compare" not in said
    assert call("prove", str(change_a_loss(run, tmp_path / "changed"))) == 1
    said = capsys.readouterr().out
    assert "loss/total" in said and "2 ranks: on other machines" in said


@pytest.mark.nightly
def test_a_tool_of_several_turns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    train("look_twice", run, *ASKING)
    (step,) = run.glob("rollouts/step-5.jsonl")
    rows = [json.loads(line) for line in step.read_text().splitlines()]
    assert any(one["segments"][1:] for row in rows for one in row["completions"])
    assert call("prove", str(run)) == 0
    said = capsys.readouterr().out
    assert f"EQUAL: steps 5 to 5 of {run}" in said and "differ" not in said
    assert find_unsteady_calls(run, run, 0, 5) == []


@pytest.mark.nightly
@pytest.mark.parametrize("says_so", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_a_tool_that_reads_the_clock_is_named(
    says_so: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = f"{clock_tools.__file__}:{'TimedCrop' if says_so else 'SecretlyTimedCrop'}"
    run = tmp_path / "run"
    train(
        "look_twice",
        run,
        *ASKING,
        f"data.train=[{{card: look_twice, tools: ['{tool}'], instruct: false}}]",
    )
    assert call("prove", str(run)) == 1
    said = capsys.readouterr().out
    assert "NOT EQUAL" in said
    assert "calls of 'crop' returned something else for the same arguments: first in step 5" in said
    assert ("is not a function of its arguments" in said) == says_so


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (["run.threads=null"], "run.threads is not set: sums depend on the number of threads"),
        (["run.threads=2"], "run.threads=2: only one thread adds in the same order every time"),
        (["engine.name=vllm"], "engine vllm: its kernels depend on which requests share a batch"),
        (
            ["data.train.0.tools=[crop, python]"],
            "tool 'python' of source 'shapes' is not a function",
        ),
        (
            ["models={judge: {url: 'http://127.0.0.1:9/v1', model: m}}"],
            "model 'judge' is asked again",
        ),
    ],
)
def test_what_need_not_be_the_same_twice_is_named(changed: list[str], named: str) -> None:
    found = list(list_inexact(load("quickstart", ["run.threads=1", *changed]), 1))
    assert len(found) == 1 and found[0].startswith(named)


def test_a_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load("quickstart", ["run.threads=1"])
    assert list(list_inexact(config, 1)) == []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    (found,) = list_inexact(config, 1)
    assert found.startswith("a GPU: several of its kernels add in an order that is not fixed")


def test_rollouts_that_a_checkpoint_found_unfinished_are_counted(tmp_path: Path) -> None:
    config = load("quickstart", ["rollout.prompts=3"])
    queue = tmp_path / "step-6/trainer/queue.json"
    queue.parent.mkdir(parents=True)
    whole = {str(number): {} for number in range(3)}
    queue.write_text(json.dumps([{"key": [6, 0], "groups": whole}]))
    assert list(list_unfinished(tmp_path / "step-6", config)) == []
    queue.write_text(
        json.dumps([{"key": [6, 0], "groups": whole}, {"key": [7, 0], "groups": {"2": {}}}])
    )
    (found,) = list_unfinished(tmp_path / "step-6", config)
    assert found.startswith("checkpoint step-6 holds 4 of the 6 groups that were issued ahead")
