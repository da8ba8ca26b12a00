"""What a run does about damaged checkpoints, a full disk and a second owner of its folder."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import vlmrl.config
from helpers.runs import ROOT, TINY, final_state, metric_lines
from vlmrl.assemble import lifecycle
from vlmrl.errors import UserError
from vlmrl.policy import checkpoint
from vlmrl.runs import run_lock

HARMS = ("cut", "emptied", "flipped", "removed")


def config(folder: Path, *more: str) -> Any:
    return vlmrl.config.load("quickstart", [*TINY, f"run.dir={folder}", *more])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damage") / "run"
    lifecycle.train(config(folder))
    return folder


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "run")


def damage(file: Path, harm: str) -> None:
    data = file.read_bytes()
    middle = len(data) // 2
    flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    if harm == "removed":
        file.unlink()
    else:
        file.write_bytes({"cut": data[:middle], "emptied": b"", "flipped": flipped}[harm])


@pytest.mark.parametrize("harm", HARMS)
def test_whatever_file_is_damaged_the_one_before_is_taken_and_the_file_named(
    run: Path, harm: str
) -> None:
    last = checkpoint.latest(run)
    assert last is not None and last.name == "step-5"
    files = [p for p in last.rglob("*") if p.is_file()]
    assert {"state.json", "optimizer.pt", "model.safetensors", "config.json"} <= {
        p.name for p in files
    }
    for file in files:
        data, warnings = file.read_bytes(), list[str]()
        damage(file, harm)
        found = checkpoint.latest(run, warnings.append)
        assert found is not None and found.name == "step-4", file
        named = file.name in warnings[0] or file.name == "checksums.json"
        assert named and "step-5 is damaged" in warnings[0]
        file.write_bytes(data)
    assert checkpoint.latest(run) == last


def test_a_resumed_run_goes_on_from_the_newest_whole_checkpoint(
    run: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(run / "checkpoints/step-5/model.safetensors", "flipped")
    lifecycle.train(config(run, "resume=auto"))
    assert "step-5 is damaged and passed over" in capsys.readouterr().err
    assert final_state(run) == final_state(whole)
    assert metric_lines(run) == metric_lines(whole)


def test_where_all_are_damaged_nothing_is_started_anew_in_silence(run: Path) -> None:
    for file in run.glob("checkpoints/*/trainer/state.json"):
        damage(file, "emptied")
    with pytest.raises(
        UserError, match=r"all checkpoints are damaged .*state\.json.* to start anew"
    ):
        lifecycle.train(config(run, "resume=auto"))


def test_a_damaged_checkpoint_that_is_asked_for_by_name_is_refused(run: Path) -> None:
    damage(run / "checkpoints/step-5/generation_config.json", "cut")
    with pytest.raises(UserError, match=r"generation_config\.json has .* bytes, expected"):
        lifecycle.train(config(run, f"resume={run}/checkpoints/step-5"))


FULL = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from vlmrl.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)),) * 2)
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("limit", [400_000, 4_000_000])
def test_a_disk_that_takes_no_more_is_one_line_and_leaves_the_last_checkpoint(
    run: Path, whole: Path, limit: int
) -> None:
    """400 kB: the weights do not fit; 4 MB: the weights do, and the optimizer's state does not."""
    sizes = {p.name: p.stat().st_size for p in (run / "checkpoints/step-5").rglob("*")}
    assert sizes["model.safetensors"] < 4_000_000 < sizes["optimizer.pt"]
    overrides = [*TINY, f"run.dir={run}", "resume=auto", "run.steps=6"]
    command = [sys.executable, "-c", FULL, str(limit), "train", "quickstart", *overrides]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 2 and "cannot write checkpoint" in last and "MiB free" in last
    assert "Traceback" not in done.stderr
    assert not list(run.glob("checkpoints/.*.part"))
    assert final_state(run) == final_state(whole)


def test_a_second_run_in_the_same_folder_is_refused_and_moves_nothing(run: Path) -> None:
    before = sorted(p.name for p in run.parent.iterdir())
    with run_lock.own(run):
        for resume in ("never", "auto"):
            with pytest.raises(UserError, match="another run is writing to this folder"):
                lifecycle.train(config(run, f"resume={resume}"))
    assert sorted(p.name for p in run.parent.iterdir()) == before
