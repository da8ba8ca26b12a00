"""A run folder that cannot be begun, goes while it is written to, is older, or holds a pickle."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from helpers.disk import report_free
from helpers.runs import TINY
from vlmrl.assemble import lifecycle
from vlmrl.assemble.trained_run import find_run, run_of
from vlmrl.config import Config, load
from vlmrl.errors import UserError
from vlmrl.runs import run_folder
from vlmrl.system import files
from vlmrl.system.pickles import load_tensors


def config(folder: Path, *more: str) -> Config:
    short = ["run.steps=2", "run.save_every=1", "sft=null", "evaluation=null"]
    return load("quickstart", [f"run.dir={folder}", *TINY, *short, *more])


@pytest.mark.slow
def test_a_start_without_room_leaves_nothing_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report_free(monkeypatch, lambda: 1000)
    folder = tmp_path / "run"
    for before in (False, True):
        if before:
            run_folder.write_config(folder, config(folder))
        there = {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}
        with pytest.raises(UserError, match="MiB free, but 2 more checkpoints"):
            lifecycle.train(config(folder))
        left = {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}
        assert left == there and not (tmp_path / "run.1").exists()
        assert [p.name for p in tmp_path.iterdir() if not p.name.startswith(".")] == (
            ["run"] if before else []
        )


@pytest.mark.slow
def test_a_folder_that_goes_meanwhile_is_said_and_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, begin = tmp_path / "run", lifecycle.begin_rl

    def delete(*arguments: Any) -> None:
        begin(*arguments)
        shutil.rmtree(folder)

    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "begin_rl", delete)
        with pytest.raises(UserError, match="run: the run folder was deleted or moved while"):
            lifecycle.train(config(folder))
    assert not folder.exists() or not list(folder.rglob("*.jsonl"))
    files.require_may_write()  # the check has gone with the run


def test_two_checks_of_writes_are_both_made() -> None:
    asked: list[str] = []
    with files.checking(lambda: asked.append("a")):
        with files.checking(lambda: asked.append("b")):
            asked.clear()
            files.require_may_write()
            assert asked == ["a", "b"]
        asked.clear()
        files.require_may_write()
        assert asked == ["a"]
    files.require_may_write()
    assert asked == ["a"]


# ---------------------------------------------------------------------------------- older versions


def older(folder: Path, **changes: Any) -> str:
    """A run folder with a checkpoint of an earlier format; changes are of config.json."""
    tree = json.loads(run_folder.write_config(folder, config(folder)).read_text())
    for place, value in changes.items():
        *inside, key = place.split("__")
        node = tree
        for part in inside:
            node = node[int(part) if part.isdigit() else part]
        node[key] = value
    (folder / "config.json").write_text(json.dumps(tree))
    trainer = folder / "checkpoints/step-1/trainer"
    trainer.mkdir(parents=True)
    (trainer / "state.json").write_text(json.dumps({"phase": "rl", "step": 1, "format": 1}))
    return str(folder)


def test_a_run_of_an_older_version_is_read_and_what_is_left_out_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {"data__root": "/media", "rewards__0__deadline": 3, "data__train__0__old": [1]}
    settings, folder = run_of(older(tmp_path / "run", run__keep=2, **changes))
    assert folder.endswith("step-1") and settings is not None
    assert settings.rewards == config(tmp_path / "run").rewards
    warning = capsys.readouterr().err
    assert warning.count("\n") == 1 and "written by vlmrl 0.1.0" in warning
    for key in ("run.keep: 2", "data.root: '/media'", "rewards.0.deadline: 3", "0.old: [1]"):
        assert key in warning
    run_of(older(tmp_path / "now"))
    assert capsys.readouterr().err == ""


def test_what_an_older_config_lacks_is_named_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"rollout.prompts: .*\n.*copy the checkpoint out") as error:
        run_of(older(tmp_path / "run", run__keep=2, rollout__prompts="many"))
    assert "run.keep" not in str(error.value)


def test_a_run_that_has_saved_nothing_says_so(tmp_path: Path) -> None:
    run_folder.write_config(tmp_path, config(tmp_path))
    with pytest.raises(UserError, match="this run has no checkpoint yet"):
        find_run(str(tmp_path))


# ----------------------------------------------------------------------------------------- pickles


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("run by a pickle",))


@pytest.mark.parametrize(
    "content",
    [pickle.dumps(Hostile(), 2), pickle.dumps(Hostile(), 4), b"", b"\x80\x04", b"PK\3\4", b"cat\n"],
)
def test_a_file_that_is_no_tensors_is_refused_by_name_and_nothing_is_run(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "optimizer.pt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"optimizer.pt: expected tensors") as error:
        load_tensors(path)
    assert "run by a pickle" not in capsys.readouterr().out
    if content == pickle.dumps(Hostile(), 2):
        assert "it asks for print, which could run anything" in str(error.value)
    assert "weights_only" not in str(error.value)
