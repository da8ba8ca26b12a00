"""Rollouts ahead of the trainer on two ranks: each has a queue of its own prompts, and a run goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.rollouts_ahead import HELPERS, TINY, trained_ids
from helpers.runs import final_state, metric_lines, torchrun
from vlmrl.assemble import lifecycle
from vlmrl.config import load
from vlmrl.policy import checkpoint

AHEAD = [
    *TINY,
    "rollout.prompts=4",
    "rollout.group_size=2",
    "rollout.max_staleness=2",
    f"engine.name={HELPERS}/copy_engine.py:DrainedEngine",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six steps on two ranks."""
    folder = tmp_path_factory.mktemp("ahead") / "two"
    train_on_two(folder)
    return folder


def train_on_two(folder: Path, *more: str) -> None:
    done = torchrun("-m", "vlmrl", "train", "quickstart", f"run.dir={folder}", *AHEAD, *more)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_two_ranks_train_in_the_order_of_one_as_old_as_the_bound_allows(folder, tmp_path):
    alone = tmp_path / "one"
    lifecycle.train(load("quickstart", [f"run.dir={alone}", *AHEAD]))
    assert trained_ids(folder) == trained_ids(alone)
    for lines in map(metric_lines, (folder, alone)):
        assert [line["rollout/staleness"] for line in lines] == [0, 1, 2, 2, 2, 2]
        assert all(line["update/grad_norm"] > 0 for line in lines)


@pytest.mark.slow
def test_one_process_trains_on_what_two_ranks_have_waiting(folder, tmp_path):
    saved = folder / "checkpoints/step-4"
    waiting = checkpoint.read_queue(saved)
    assert [{*entry["groups"]} for entry in waiting] == [{"0", "1", "2", "3"}] * 2
    on = tmp_path / "on"
    lifecycle.train(load("quickstart", [f"run.dir={on}", *AHEAD, f"resume={saved}"]))
    assert trained_ids(on) == trained_ids(folder)[4:]
    for step in (5, 6):
        there, here = (told(f / f"rollouts/step-{step}.jsonl") for f in (folder, on))
        assert here == there


def told(path: Path) -> list[list[tuple[str, float]]]:
    rows = map(json.loads, path.read_text().splitlines())
    return [[(one["text"], one["reward"]) for one in row["completions"]] for row in rows]


@pytest.mark.nightly
def test_two_ranks_go_on_to_the_same_bits(folder, tmp_path):
    on = tmp_path / "on"
    train_on_two(on, f"resume={folder / 'checkpoints/step-3'}")
    assert final_state(on) == final_state(folder)


@pytest.mark.nightly
def test_two_ranks_train_on_what_one_process_has_waiting(folder, tmp_path):
    alone, on = tmp_path / "alone", tmp_path / "on"
    start = f"resume={folder / 'checkpoints/step-2'}"
    lifecycle.train(load("quickstart", [f"run.dir={alone}", *AHEAD, start]))
    saved = alone / "checkpoints/step-4"
    assert [{*entry["groups"]} for entry in checkpoint.read_queue(saved)] == [{*"0123"}] * 2
    train_on_two(on, f"resume={saved}")
    assert trained_ids(on) == trained_ids(folder)[4:]
    for step in (5, 6):
        there, here = (told(f / f"rollouts/step-{step}.jsonl") for f in (alone, on))
        assert here == there
