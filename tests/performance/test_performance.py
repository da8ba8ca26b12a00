"""The speed measurements run, on sizes that say nothing about speed."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "performance"
SMALL = {
    "step": "--prompt-tokens 64 --completion 4 --group 2 --repeats 1",
    "update": "--tables grid --prompt 64 --completion 16 --group 4 --repeats 1",
    "turns": "--prompt 64 --group 2 --calls 12 --repeats 1",
    "decode": "--prompt 64 --completion 4 --group 2 --repeats 1",
    "verifiers": "--calls 200 --memory-calls 2000",
    "startup": "--rounds 1",
    "evaluation": "--rows 120",
    "media": "audio --rounds 1",
    "samplers": "--rows 20000 --batches 2",
    "levels": "quickstart --rows 50",
    "watch": "--steps 200 --appends 3",
    "intervals": "--draws 2",
    "guests": "--requests 20 --slow 6 --pause 0.5",
    "growth": "--only read_choice",
    "exponents": "--only 'images: prompt' --most 4",
}
ELSEWHERE = {
    "rollout": "test_rollout_vllm.py",
    "rollout_async": "test_rollout_vllm.py",
    "rollout_streaming": "test_rollout_vllm.py",
    "step_ways": "a part of step.py",
    "groups": "a part of update.py, step.py and gpu.py",
    "gpu": "test_gpu_day.py",
    "graders": "needs Ray",
    "launch_overhead": "needs Ray",
    "saves": "writes gigabytes",
    "tables": "a part of the scripts that print tables",
    "family_parity": "measures every family for minutes; its comparisons are those of the tests",
    "family_runs": "trains every family for minutes",
    "ranks": "starts eight ranks, in a network of its own",
    "reproduce": "test_reproduce.py",
    "learning": "a part of the scripts that train",
    "new_person": "test_new_person.py",
    "streaming_learning": "trains for minutes on each seed, with vLLM servers",
    "curricula": "trains for minutes on each seed",
    "pass_at_k": "trains for minutes on each seed",
    "staged_lengths": "trains for minutes on each seed",
    "acting": "trains for minutes on each seed",
    "quickstart": "trains the quickstart four times",
    "quickstart_cost": "trains the quickstart of several commits",
    "think_or_not": "trains for minutes on each seed",
    "photos": "trains for minutes on each seed",
    "race": "trains for minutes on each seed; its parts are in test_race.py",
    "stamps": "trains for minutes on each seed",
    "digits": "trains for minutes on each seed",
    "words": "trains for minutes on each seed",
    "shortcut": "trains for minutes on each seed",
    "shortcut_scenes": "the card of shortcut.py",
    "loopholes": "trains for minutes on each seed",
    "loophole_tricks": "the card of loopholes.py",
    "distillation": "trains for minutes on each seed",
}
"""Scripts that are not run here, and why."""


def run(name: str) -> str:
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *shlex.split(SMALL[name])]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.nightly
def test_a_step_beside_trl() -> None:
    pytest.importorskip("trl")
    ways = [line.split(" | ")[3] for line in run("step").splitlines() if line.startswith("| 64 ")]
    assert ways == ["trl", "plain", "shared"]


def test_every_script_is_run_or_says_why_not() -> None:
    assert {path.stem for path in BENCHMARKS.glob("*.py")} == SMALL.keys() | ELSEWHERE.keys()


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(SMALL.keys() - {"step"}))
def test_the_others(name: str) -> None:
    assert "|---" in run(name)
