"""One owner a run folder: refused while it lives, taken over when it is dead."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from vlmrl.errors import UserError
from vlmrl.runs import run_lock


def held_by(folder: Path, **changes: object) -> Path:
    """A lock file as another run would leave it."""
    path = run_lock.lock_path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    owner = {"host": socket.gethostname(), "pid": 1, "process_start": 0, "start": "yesterday"}
    path.write_text(json.dumps({**owner, **changes}))
    return path


def test_a_second_owner_is_refused_by_name_and_the_folder_is_free_afterwards(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "runs" / "mine"
    refused = pytest.raises(UserError, match=rf"process {os.getpid()} on {socket.gethostname()}")
    with run_lock.own(folder), refused, run_lock.own(folder):
        pass
    with run_lock.own(folder):
        pass
    assert list(folder.parent.iterdir()) == []


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    program = (
        "import sys, time, pathlib; from vlmrl.runs import run_lock\n"
        "with run_lock.own(pathlib.Path(sys.argv[1])): print('mine', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "mine")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "mine\n"
        with (
            pytest.raises(UserError, match="another run is writing"),
            run_lock.own(tmp_path / "mine"),
        ):
            pass
        other.kill()
        other.wait()
        with run_lock.own(tmp_path / "mine"):
            pass


def test_a_process_number_that_was_given_again_is_no_owner(tmp_path: Path) -> None:
    held_by(tmp_path / "mine", pid=os.getpid(), process_start=1.0)
    with run_lock.own(tmp_path / "mine"):
        pass


def test_a_lock_from_before_the_boot_is_stale_though_its_number_lives(tmp_path: Path) -> None:
    with run_lock.own(tmp_path / "mine"):
        path = run_lock.lock_path(tmp_path / "mine")
        owner = json.loads(path.read_text())
    path.write_text(json.dumps({**owner, "boot": "an earlier one"}))
    with run_lock.own(tmp_path / "mine"):
        pass


def test_a_clock_that_is_set_does_not_free_a_live_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created, boot = psutil.Process.create_time, psutil.boot_time
    with run_lock.own(tmp_path / "mine"):  # psutil adds the boot time, which the clock moves
        monkeypatch.setattr(psutil.Process, "create_time", lambda p: created(p) + 3600)
        monkeypatch.setattr(psutil, "boot_time", lambda: boot() + 3600)
        with pytest.raises(UserError, match="another run"), run_lock.own(tmp_path / "mine"):
            pass
    monkeypatch.setattr(run_lock, "TOUCH_S", 0.5)
    path = held_by(tmp_path / "other", host="elsewhere")
    os.utime(path, (0, 0))  # the clock of the file system was set after the owner's last touch
    touch = threading.Timer(0.2, os.utime, [path])
    touch.start()
    with pytest.raises(UserError, match="elsewhere"), run_lock.own(tmp_path / "other"):
        pass


def test_a_lock_from_another_host_is_stale_when_nobody_touches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lock, "TOUCH_S", 0.01)
    path = held_by(tmp_path / "mine", host="elsewhere")
    with pytest.raises(UserError, match="elsewhere"), run_lock.own(tmp_path / "mine"):
        pass
    old = time.time() - 2 * run_lock.STALE_S
    os.utime(path, (old, old))
    with run_lock.own(tmp_path / "mine"):
        pass


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": "x"}'])
def test_a_damaged_lock_holds_until_it_is_stale(
    tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lock, "TOUCH_S", 0.01)
    path = held_by(tmp_path / "mine")
    path.write_text(content)
    with pytest.raises(UserError, match="delete"), run_lock.own(tmp_path / "mine"):
        pass
    os.utime(path, (0, 0))
    with run_lock.own(tmp_path / "mine"):
        pass


def test_the_owner_touches_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "TOUCH_S", 0.01)
    with run_lock.own(tmp_path / "mine"):
        path = run_lock.lock_path(tmp_path / "mine")
        os.utime(path, (0, 0))
        deadline = time.monotonic() + 10
        while path.stat().st_mtime == 0 and time.monotonic() < deadline:
            threading.Event().wait(0.01)
        assert path.stat().st_mtime > 0


def _try(
    folder: Path, start: multiprocessing.synchronize.Barrier, found: multiprocessing.Queue
) -> None:
    start.wait()
    try:
        with run_lock.own(folder):
            found.put("owner")
            time.sleep(1)
    except UserError:
        found.put("refused")


def test_of_many_that_find_a_stale_lock_one_becomes_the_owner(tmp_path: Path) -> None:
    held_by(tmp_path / "mine", pid=2**22 + 1)
    context = multiprocessing.get_context("fork")
    start, found = context.Barrier(6), context.Queue()
    runs = [context.Process(target=_try, args=(tmp_path / "mine", start, found)) for _ in range(6)]
    for run in runs:
        run.start()
    outcomes = sorted(found.get(timeout=60) for _ in runs)
    for run in runs:
        run.join()
    assert outcomes == ["owner"] + 5 * ["refused"]


def test_a_file_is_no_run_folder(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    said = "run: expected a folder for the run, got a file"
    with pytest.raises(UserError, match=said), run_lock.own(tmp_path / "run"):
        pass
