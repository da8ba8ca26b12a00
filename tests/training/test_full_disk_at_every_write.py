"""Commands whose k-th write finds the disk full: one line, nothing half written, checkpoints kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import vlmrl.config
from helpers.full_disk import Filled, fill
from helpers.runs import TINY
from vlmrl.assemble import lifecycle
from vlmrl.policy import checkpoint

FEW = 4
"""Writes of each command that CI fills the disk at; the nightly run fills it at every one."""
SHORT = [
    *TINY,
    *("run.steps=1", "run.save_every=1", "run.rollouts_every=1", "run.report=true"),
    *("sft.max_steps=1", "evaluation.limit=2", "resume=auto"),
]


def train_command(folder: Path, *more: str) -> list[str]:
    (folder / "before").mkdir()
    return ["train", "quickstart", "run.dir={here}/run", *SHORT, *more]


def trained(folder: Path, *more: str) -> None:
    overrides = [*SHORT, f"run.dir={folder}", "run.report=false", *more]
    lifecycle.train(vlmrl.config.load("quickstart", overrides))


def export_command(folder: Path) -> list[str]:
    trained(folder / "before/run", "sft=null", "evaluation=null")
    return ["export", "{here}/run"]


COMMANDS: dict[str, Callable[[Path], list[str]]] = {
    "train": train_command,
    "export": export_command,
}


def require_one_line(outcome: Filled) -> None:
    """One line that says why, no file half written, every checkpoint whole."""
    where = f"{outcome.number}: {outcome.call}\n{outcome.said}"
    last = outcome.said.strip().splitlines()[-1]
    assert outcome.code == 2 and last.startswith("error: "), where
    assert "No space left" in last or "inline_container" in last, where
    assert "MiB free)" in last, where
    assert "Traceback" not in outcome.said, where
    assert outcome.left == [], where
    for path in Path(outcome.folder).glob("run/checkpoints/*"):
        assert checkpoint.damage_of(path) is None, where


def require_all(folder: Path, name: str, numbers: int | None) -> list[Filled]:
    whole, *full = fill(folder, COMMANDS[name](folder), numbers)
    assert whole.code == 0 and whole.left == [], whole
    assert len(full) >= (numbers or 10)
    for outcome in full:
        require_one_line(outcome)
    return [whole, *full]


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_wherever_the_disk_is_full_it_is_one_line_and_nothing_is_half_written(
    name: str, tmp_path: Path
) -> None:
    require_all(tmp_path, name, FEW)


@pytest.mark.nightly
@pytest.mark.parametrize("name", COMMANDS)
def test_at_every_write_a_full_disk_is_one_line_and_nothing_is_half_written(
    name: str, tmp_path: Path
) -> None:
    require_all(tmp_path, name, None)
