"""One owner a run folder: refused while it lives, taken over when it is dead; old attempts are superseded."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vlmrl.errors import UserError
from vlmrl.runs import run_lock

PROGRAM = (
    "import sys, time, pathlib; from vlmrl.runs import run_lock\n"
    "with run_lock.own(pathlib.Path(sys.argv[1])): print('mine', flush=True); time.sleep(60)"
)


def test_a_second_owner_is_refused_by_name_and_the_folder_is_free_afterwards(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "runs" / "mine"
    refused = pytest.raises(UserError, match=rf"process {os.getpid()} on {socket.gethostname()}")
    with run_lock.own(folder), refused, run_lock.own(folder):
        pass
    with run_lock.own(folder):
        pass
    assert [path.name for path in folder.parent.iterdir()] in ([], [".mine.lock"])


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "mine\n"
        refused = pytest.raises(UserError, match=f"another run is writing .*process {other.pid} on")
        with refused, run_lock.own(folder):
            pass
        owner = run_lock.living_owner(folder)
        assert owner is not None and (owner.pid, owner.attempt) == (other.pid, 0)
        other.kill()
        other.wait()
        assert run_lock.living_owner(folder) is None and run_lock.owner_path(folder).exists()
        with run_lock.own(folder):
            pass


def test_those_who_look_at_the_owner_keep_nobody_away(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    assert run_lock.living_owner(folder) is None
    with run_lock.own(folder):
        owners = [run_lock.living_owner(folder) for _ in range(2)]
        assert [owner and owner.pid for owner in owners] == [os.getpid()] * 2
    run_lock.lock_path(folder).chmod(0o444)
    assert run_lock.living_owner(folder) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": "x"}'])
def test_a_damaged_file_of_an_owner_is_named_and_leaves_the_lock_free(
    tmp_path: Path, content: str
) -> None:
    folder = tmp_path / "mine"
    run_lock.owner_path(folder).write_text(content)
    for _ in range(2):
        with pytest.raises(UserError, match=r"\.mine\.owner: "), run_lock.own(folder):
            pass
    run_lock.owner_path(folder).unlink()
    with run_lock.own(folder):
        pass


def test_attempts_count_on_and_a_run_without_a_launch_supersedes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mine"
    with run_lock.own(folder):
        assert [run_lock.begin_attempt(folder) for _ in range(2)] == [1, 2]
        monkeypatch.setenv("VLMRL_ATTEMPT", "2")
        with run_lock.fenced(folder):
            pass
    with run_lock.own(folder), pytest.raises(run_lock.Superseded), run_lock.fenced(folder):
        pass


def _try(
    folder: Path, start: multiprocessing.synchronize.Barrier, outcomes: multiprocessing.Queue
) -> None:
    start.wait()
    try:
        with run_lock.own(folder):
            outcomes.put("owner")
            time.sleep(5)
    except UserError:
        outcomes.put("refused")


def test_of_many_that_start_at_once_one_becomes_the_owner(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    start, outcomes = context.Barrier(6), context.Queue()
    arguments = (tmp_path / "mine", start, outcomes)
    runs = [context.Process(target=_try, args=arguments) for _ in range(6)]
    for run in runs:
        run.start()
    found = sorted(outcomes.get(timeout=60) for _ in runs)
    for run in runs:
        run.join()
    assert found == ["owner"] + 5 * ["refused"]


def test_a_file_is_no_run_folder(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    line = "run: expected a folder for the run, got a file"
    with pytest.raises(UserError, match=line), run_lock.own(tmp_path / "run"):
        pass
