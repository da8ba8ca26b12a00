"""Commands whose k-th write finds the disk full: one line, nothing half written, checkpoints kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import vlmrl.config
from helpers.daily import marked
from helpers.full_disk import Filled, fill
from helpers.hard import bad_source
from helpers.kills import ENGINE
from helpers.published import ROWS, write_published
from helpers.runs import TINY, final_state, metric_lines
from vlmrl.assemble import lifecycle
from vlmrl.policy import checkpoint

FEW = 2
"""Writes of each command that CI fills the disk at; the nightly run fills it at every one."""
SHORT = [
    *TINY,
    *("run.steps=1", "run.save_every=1", "run.rollouts_every=1", "run.report=true"),
    *("sft.max_steps=1", "evaluation.limit=2", "resume=auto"),
]
LORA = [
    *("model.lora={rank: 2}", "algorithm.options.kl=0.1", "run.report=false", "sft=null"),
    *("rollout.max_staleness=1", f"engine.name={ENGINE}"),
]
TRACKED = ["tracking.tensorboard=true", "run.report=false", "sft=null", "evaluation=null"]


def train_command(folder: Path, *more: str) -> list[str]:
    (folder / "before").mkdir()
    return ["train", "quickstart", "run.dir={here}/run", *SHORT, *more]


def trained(folder: Path, *more: str) -> None:
    overrides = [*SHORT, f"run.dir={folder}", "run.report=false", *more]
    lifecycle.train(vlmrl.config.load("quickstart", overrides))


def export_command(folder: Path) -> list[str]:
    trained(folder / "before/run", "sft=null", "evaluation=null")
    return ["export", "{here}/run"]


def eval_command(folder: Path) -> list[str]:
    trained(folder / "before/run", "sft=null", "evaluation=null")
    return [
        "eval",
        "{here}/run",
        "--data",
        "shapes:test",
        "--limit",
        "2",
        "--out",
        "{here}/answers",
    ]


def benchmark_command(folder: Path) -> list[str]:
    trained(folder / "before/run", "sft=null", "evaluation=null")
    write_published(folder / "data", "mmstar", "val", ROWS["mmstar"])
    asked = ["--benchmark", "mmstar", "--limit", "2", "--data-root", str(folder / "data")]
    return ["eval", "{here}/run", *asked, "--out", "{here}/answers"]


def report_command(folder: Path) -> list[str]:
    trained(folder / "before/run", "evaluation.limit=2")
    return ["report", "{here}/run"]


def mirror_command(folder: Path) -> list[str]:
    """The run folder has room: the store is full."""
    (folder / "before").mkdir()
    stored = ["run.mirror=file://{here}/store", f"run.dir={folder}/run-{{name}}"]
    return [
        "train",
        "quickstart",
        *SHORT,
        "sft=null",
        "evaluation=null",
        "run.report=false",
        *stored,
    ]


def restore_command(folder: Path) -> list[str]:
    """The run folder is lost, and the store has it."""
    short = ["sft=null", "evaluation=null", f"run.mirror=file://{folder}/before/store"]
    trained(folder / "run", *short)
    stored = ["run.mirror=file://{here}/store", "run.dir={here}/run"]
    more = ["sft=null", "evaluation=null", "run.report=false", "run.steps=2"]
    return ["train", "quickstart", *SHORT, *more, *stored]


COMMANDS: dict[str, Callable[[Path], list[str]]] = {
    "train": train_command,
    "train with an adapter, ahead, bad rows": lambda folder: train_command(
        folder, *LORA, *bad_source(folder)
    ),
    "train with a tracker": lambda folder: train_command(folder, *TRACKED),
    "export": export_command,
    "eval": eval_command,
    "benchmark": benchmark_command,
    "report": report_command,
    "mirror": mirror_command,
    "restore": restore_command,
}


def require_one_line(outcome: Filled) -> None:
    """One line that says why, no file half written, every checkpoint whole."""
    where = f"{outcome.number}: {outcome.call}\n{outcome.said}"
    last = outcome.said.strip().splitlines()[-1]
    if "/tensorboard/" in outcome.call and outcome.code == 0:
        assert "tracker 'tensorboard'" in outcome.said, where
    else:
        assert outcome.code == 2 and last.startswith("error: "), where
        assert "No space left" in last or "the disk took no more" in last, where
        # How much room there is in a store, fsspec does not know.
        assert "MiB free)" in last or "store" in outcome.call, where
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
@pytest.mark.parametrize(
    "name",
    marked(["train", "export", "benchmark", "report", "mirror", "restore"], ["train", "mirror"]),
)
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


@pytest.mark.nightly
def test_a_run_whose_disk_was_full_goes_on_and_ends_as_one_that_had_room(tmp_path: Path) -> None:
    command = train_command(tmp_path)
    whole, *full = fill(tmp_path, command, 25)
    for outcome in full:
        overrides = [word.replace("{here}", outcome.folder) for word in command[2:]]
        lifecycle.train(vlmrl.config.load("quickstart", overrides))
        require_same(whole, outcome)


@pytest.mark.nightly
def test_a_run_that_waits_for_room_ends_as_one_that_had_it(tmp_path: Path) -> None:
    command = train_command(tmp_path, "run.on_full_disk=wait")
    whole, *full = fill(tmp_path, command, 100, for_ever=False)
    for outcome in full:
        if outcome.code:  # before the run knows that it may wait: its lock
            require_one_line(outcome)
        else:
            assert "waiting for room" in outcome.said, outcome
            require_same(whole, outcome)


def require_same(whole: Filled, other: Filled) -> None:
    one, two = Path(whole.folder) / "run", Path(other.folder) / "run"
    assert final_state(one) == final_state(two), other
    assert metric_lines(one) == metric_lines(two), other
