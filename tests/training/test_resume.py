"""A run that was interrupted, or killed, ends where the uninterrupted run ends, to the last bit."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from helpers.interrupts import stop_after
from helpers.runs import TINY, final_state, metric_lines
from vlmrl.assemble import lifecycle
from vlmrl.config import load
from vlmrl.errors import UserError
from vlmrl.runs import run_folder


def config(folder: Path, *more: str):
    return load("quickstart", [f"run.dir={folder}", *TINY, *more])


ADAPTIVE = (
    "data.sampler={name: adarft, lag: 1, options: {difficulty: index, target: 999, highest: 1999}}"
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert lifecycle.train(config(folder))["finished"]
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "steps",
    [5, pytest.param(2, marks=pytest.mark.nightly), pytest.param(8, marks=pytest.mark.nightly)],
)
def test_an_interrupted_run_resumes_bit_for_bit(whole, tmp_path, monkeypatch, steps):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "Interrupt", stop_after(steps))
        assert not lifecycle.train(config(folder))["finished"]
    assert lifecycle.train(config(folder, "resume=auto"))["finished"]
    assert final_state(folder) == final_state(whole)
    assert metric_lines(folder) == metric_lines(whole)
    evaluations = sorted(p.name for p in (folder / "evals").iterdir())
    assert evaluations == sorted(p.name for p in (whole / "evals").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        pytest.param(["model.lora={rank: 2}", "algorithm=dapo"], marks=pytest.mark.nightly),
        [
            "model.lora={rank: 2, full: [projector]}",
            "model.freeze=[vision]",
            "optimizer.lr_factors={projector: 5}",
            "algorithm.options.kl=0.1",
        ],
        pytest.param(
            ["algorithm.options.kl=0.1", "optimizer.minibatches=2", "optimizer.epochs=2"],
            marks=pytest.mark.nightly,
        ),
        [
            "data.workers=1",
            "algorithm=rloo",
            "checks.media_ablation_every=2",
            "checks.parity_exact=true",
            "checks.parity_every=3",
        ],
    ],
)
def test_resume_is_exact_with_adapters_references_updates_and_workers(tmp_path, monkeypatch, more):
    one, two = tmp_path / "one", tmp_path / "two"
    lifecycle.train(config(one, *more))
    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "Interrupt", stop_after(7))
        lifecycle.train(config(two, *more))
    lifecycle.train(config(two, *more, "resume=auto"))
    assert final_state(one) == final_state(two)
    assert metric_lines(one) == metric_lines(two)


@pytest.mark.slow
def test_a_finished_run_is_left_as_it_is_by_resume(whole):
    before = {p: p.stat().st_mtime_ns for p in (whole / "checkpoints").rglob("*")}
    assert lifecycle.train(config(whole, "resume=auto"))["finished"]
    assert before == {p: p.stat().st_mtime_ns for p in (whole / "checkpoints").rglob("*")}


@pytest.mark.slow
def test_a_new_run_moves_an_earlier_one_aside(tmp_path):
    folder = tmp_path / "run"
    lifecycle.train(config(folder, "run.steps=1"))
    lifecycle.train(config(folder, "run.steps=1", "run.seed=1"))
    assert json.loads((tmp_path / "run.1/config.json").read_text())["run"]["seed"] == 0
    assert json.loads((folder / "config.json").read_text())["run"]["seed"] == 1


def test_a_checkpoint_that_is_none_is_refused(tmp_path):
    with pytest.raises(UserError, match="expected a checkpoint"):
        lifecycle.train(config(tmp_path / "run", f"resume={tmp_path}"))


@pytest.mark.slow
def test_a_run_killed_before_its_summary_comes_to_its_end(whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    (folder / "summary.json").unlink()
    left = folder / "checkpoints" / ".step-1.old"  # killed in the middle of deleting it
    left.mkdir()
    summary = lifecycle.train(config(folder, "resume=auto"))
    assert summary["finished"] and run_folder.read_summary(folder) is not None
    assert metric_lines(folder) == metric_lines(whole)
    assert lifecycle.train(config(folder, "resume=auto", "run.steps=6"))["steps"] == 6
    assert not left.exists()


@pytest.mark.slow
def test_resuming_with_other_data_is_refused(whole):
    with pytest.raises(UserError, match=r"resume: run\.seed was 0, is 4"):
        lifecycle.train(config(whole, "resume=auto", "run.steps=9", "run.seed=4"))


@pytest.mark.slow
def test_a_full_disk_leaves_earlier_checkpoints_whole(whole, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    real, calls = torch.save, []

    def fails_the_third_time(*arguments, **options):
        calls.append(1)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", fails_the_third_time)
        with pytest.raises(UserError, match="No space left on device"):
            lifecycle.train(config(folder))
    assert not list((folder / "checkpoints").glob(".*"))
    lifecycle.train(config(folder, "resume=auto"))
    assert final_state(folder) == final_state(whole)


@pytest.mark.nightly
def test_a_run_killed_at_random_moments_always_resumes_and_ends_the_same(whole, tmp_path):
    kills = int(os.environ.get("VLMRL_KILLS", "3"))
    folder, rng = tmp_path / "run", random.Random(0)
    arguments = ["train", "quickstart", f"run.dir={folder}", *TINY, "run.save_every=1"]
    command = [sys.executable, "-m", "vlmrl", *arguments, "resume=auto"]
    for _ in range(kills):
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        _wait_for_life(folder, process)
        time.sleep(rng.uniform(0.0, 2.0))
        process.send_signal(signal.SIGKILL)
        assert process.wait() in (-signal.SIGKILL, 0)
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert metric_lines(folder) == metric_lines(whole)
    weights = {k: v for k, v in final_state(folder).items() if k != "state"}
    assert weights == {k: v for k, v in final_state(whole).items() if k != "state"}


def _wait_for_life(folder: Path, process: subprocess.Popen[str]) -> None:
    """Until the process has begun to write, so that the kill hits work and not imports."""
    begun = (folder / "sft.jsonl", folder / "metrics.jsonl")
    before = [p.stat().st_mtime_ns if p.exists() else 0 for p in begun]
    for _ in range(3600):
        now = [p.stat().st_mtime_ns if p.exists() else 0 for p in begun]
        if now != before or process.poll() is not None:
            return
        time.sleep(0.05)
    raise AssertionError("the run did not begin within 180 s")


@pytest.mark.slow
def test_a_run_whose_sampler_learns_resumes_bit_for_bit(tmp_path, monkeypatch):
    whole, folder = tmp_path / "whole", tmp_path / "run"
    more = (ADAPTIVE, "sft=null", "evaluation=null", "algorithm.options.dynamic_sampling_batches=1")
    assert lifecycle.train(config(whole, *more))["finished"]
    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "Interrupt", stop_after(3))
        assert not lifecycle.train(config(folder, *more))["finished"]
    assert lifecycle.train(config(folder, *more, "resume=auto"))["finished"]
    assert final_state(folder) == final_state(whole)
    found, wanted = metric_lines(folder), metric_lines(whole)
    assert found == wanted
    assert len({line["sampler/target"] for line in wanted}) > 1
    assert len({line["sampler/difficulty"] for line in wanted}) > 1
