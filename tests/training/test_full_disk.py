"""A run on a full disk: what is forecast, refused, waited for, and left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from helpers.disk import report_free
from helpers.runs import TINY
from vlmrl.assemble import lifecycle
from vlmrl.config import load
from vlmrl.errors import UserError
from vlmrl.policy import checkpoint
from vlmrl.system import files as disk_space

ONE_STEP = [*TINY, "run.steps=1", "run.save_every=1", "sft=null", "evaluation=null"]


def config(folder: Path, *more: str):
    return load("quickstart", [f"run.dir={folder}", *ONE_STEP, *more])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("lora", [False, True])
def test_the_forecast_is_the_size_of_the_checkpoint(
    lora: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forecast = []
    real = checkpoint.size

    def note(*arguments):
        forecast.append(real(*arguments))
        return forecast[-1]

    monkeypatch.setattr(checkpoint, "size", note)
    lifecycle.train(config(tmp_path / "run", *(["model.lora={}"] if lora else [])))
    files = (tmp_path / "run/checkpoints/step-1").rglob("*")
    real_size = sum(path.stat().st_size for path in files if path.is_file())
    at_start, before_save = forecast
    assert at_start == pytest.approx(before_save, rel=0.01)
    assert at_start == pytest.approx(real_size, rel=0.05)


@pytest.mark.slow
def test_a_disk_without_room_is_found_out_at_the_start_and_before_each_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, folder = [1000], tmp_path / "run"
    report_free(monkeypatch, lambda: free[0])
    monkeypatch.setattr(disk_space, "RETRY_S", 0.0)
    with pytest.raises(
        UserError, match=r"0 MiB free, but 1 more checkpoints .*run\.on_full_disk=wait"
    ):
        lifecycle.train(config(folder))
    assert not (folder / "checkpoints").exists()

    free[0] = 10**10
    lifecycle.train(config(folder))
    assert names(folder) == ["step-1"]

    left = folder / "checkpoints/.step-9.part"  # of a save that was killed
    left.mkdir()
    (left / "weights").touch()
    begin = lifecycle.begin_rl

    def fill_the_disk(*arguments):
        free[0] = 1000
        begin(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "begin_rl", fill_the_disk)
        with pytest.raises(UserError, match=r"cannot write checkpoint .*step-2: it needs about"):
            lifecycle.train(config(folder, "resume=auto", "run.steps=2"))
    assert names(folder) == ["step-1"]


@pytest.mark.slow
def test_a_run_may_wait_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    looks = []

    def some_at_the_third_look() -> int:
        looks.append(1)
        return 1000 if len(looks) < 4 else 10**10

    report_free(monkeypatch, some_at_the_third_look)
    monkeypatch.setattr(disk_space, "RETRY_S", 0.0)
    assert lifecycle.train(config(tmp_path / "run", "run.on_full_disk=wait"))["finished"]
    said = capfd.readouterr()
    assert said.err.count("step-1: it needs about") == said.err.count("waiting for room") == 1
    assert "0 MiB free, but 1 more checkpoints" in said.out + said.err
    assert names(tmp_path / "run") == ["step-1"]


@pytest.mark.slow
def test_a_save_that_is_broken_off_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt  # as a second Ctrl-C does

    monkeypatch.setattr(torch, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lifecycle.train(config(tmp_path / "run"))
    assert names(tmp_path / "run") == []
