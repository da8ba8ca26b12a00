"""A checkpoint that is written while training goes on is the one of the moment when it was asked for."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import saving_ranks
from helpers.killed_forks import folders_of
from helpers.runs import TINY, final_state, metric_lines, torchrun
from helpers.small import policy
from vlmrl.assemble import lifecycle
from vlmrl.config import LoraConfig, load
from vlmrl.errors import UserError
from vlmrl.policy import checkpoint
from vlmrl.policy.checkpoint import Progress
from vlmrl.policy.checkpoint_writer import CheckpointWriter
from vlmrl.policy.policy import Policy


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def stepped(lora: LoraConfig | None = None) -> Policy:
    """A policy whose optimizer has a state."""
    made = policy(lora=lora)
    for weight in made.trainable:
        weight.grad = torch.ones_like(weight)
    made.optimizer.step()
    return made


def in_thread_only(monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
    """Call `act` where a thread beside the main one is about to bring a file to the disk."""
    real = os.fsync

    def fsync(handle: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            act()
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2)])
def test_what_is_written_in_the_background_is_what_was_asked_for(lora, tmp_path, monkeypatch):
    made, gate = stepped(lora), threading.Event()
    CheckpointWriter(tmp_path / "now", made, keep=9).save(Progress("rl", 3))
    in_thread_only(monkeypatch, gate.wait)
    with CheckpointWriter(tmp_path / "later", made, keep=9, in_background=True) as writer:
        final = writer.save(Progress("rl", 3), best=None, learned={"sampler": {}})
        assert not final.exists() and checkpoint.rl_steps(tmp_path / "later") == [3]
        with torch.no_grad():
            for weight in made.base.parameters():
                weight.zero_()
        for weight in made.trainable:
            weight.grad = torch.ones_like(weight)
        made.optimizer.step()
        gate.set()
    assert contents(final) == contents(tmp_path / "now/checkpoints/step-3")
    assert checkpoint.damage_of(final) is None


def test_the_next_one_waits_and_old_ones_go(tmp_path):
    with CheckpointWriter(tmp_path, stepped(), keep=2, in_background=True) as writer:
        for step in (5, 25):
            writer.save(Progress("sft", step))
        for step in range(1, 5):
            writer.save(Progress("rl", step), best=1)
            assert all(
                (tmp_path / f"checkpoints/step-{n}").is_dir() for n in range(max(1, step - 2), step)
            )
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == [
        "sft-25",
        "step-1",
        "step-3",
        "step-4",
    ]


@pytest.mark.parametrize("ends_by", ["the next save", "the end"])
def test_a_full_disk_is_told_by_the_next_save_and_at_the_end(ends_by, tmp_path, monkeypatch):
    made = stepped()
    CheckpointWriter(tmp_path, made, keep=9).save(Progress("rl", 1))

    def fail() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    in_thread_only(monkeypatch, fail)
    writer = CheckpointWriter(tmp_path, made, keep=9, in_background=True)
    writer.save(Progress("rl", 2))
    said = r"cannot write checkpoint .*step-2: No space left .*; earlier ones are kept"
    with pytest.raises(UserError, match=said):
        if ends_by == "the end":
            writer.__exit__(None, None, None)
        else:
            writer.save(Progress("rl", 3))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-1"]


def test_an_error_of_the_run_is_told_beside_that_of_a_save(tmp_path, monkeypatch, caplog):
    def fail() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    in_thread_only(monkeypatch, fail)
    with (
        pytest.raises(RuntimeError, match="the run's own"),
        CheckpointWriter(tmp_path, stepped(), keep=9, in_background=True) as writer,
    ):
        writer.save(Progress("rl", 2))
        raise RuntimeError("the run's own")
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith(f"and in the background: cannot write checkpoint {tmp_path}")


@pytest.mark.slow
def test_killed_at_any_moment_of_a_save_the_last_whole_one_is_there(tmp_path):
    folders = folders_of("killed_saves", tmp_path)
    whole = (
        contents(folders[-1] / "checkpoints/step-1"),
        contents(folders[-1] / "checkpoints/step-2"),
    )
    for folder in folders:
        last = checkpoint.latest(folder)
        assert contents(last) == whole[last.name == "step-2"], folder.name
    assert checkpoint.latest(folders[0]).name == "step-1"
    assert checkpoint.latest(folders[-1]).name == "step-2"


@pytest.mark.slow
def test_a_run_that_saves_in_the_background_is_the_run_that_waits(tmp_path):
    for name, background in (("waits", "false"), ("goes on", "true")):
        more = [f"run.dir={tmp_path / name}", *TINY, f"run.save_in_background={background}"]
        lifecycle.train(load("quickstart", more))
    assert final_state(tmp_path / "goes on") == final_state(tmp_path / "waits")
    assert metric_lines(tmp_path / "goes on") == metric_lines(tmp_path / "waits")
    names = [
        {p.name for p in (tmp_path / n / "checkpoints").iterdir()} for n in ("waits", "goes on")
    ]
    assert names[0] == names[1]


@pytest.mark.nightly
def test_a_checkpoint_of_any_number_of_ranks_goes_on_with_any_other(tmp_path):
    """Two ranks, one, two, and two replicas of two."""
    alone, together = tmp_path / "alone", tmp_path / "together"
    together.mkdir()
    for end, number in enumerate((2, 1, 2, 4), start=1):
        expected = saving_ranks.go_on(alone, end - 1, end)
        if number == 1:
            found = saving_ranks.go_on(together, end - 1, end)
        else:
            arguments = [str(together), str(end - 1), str(end), str(number // 2)]
            done = torchrun(str(Path(saving_ranks.__file__)), *arguments, processes=number)
            assert done.returncode == 0, done.stderr
            found = torch.load(together / f"{end}-0.pt", weights_only=True)
        assert found.keys() == expected.keys()
        assert all((found[name] - weight).abs().max() <= 1e-5 for name, weight in expected.items())
        saved = together / f"checkpoints/step-{end}"
        assert checkpoint.damage_of(saved) is None
        assert len(list(saved.glob("model*.safetensors"))) >= number
        assert len(list((saved / "trainer/optimizer").glob("*"))) == (number if number > 1 else 0)
