"""A process whose attempt is over writes nothing, and one whose parent is gone ends."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from helpers.runs import ROOT, TINY
from vlmrl.errors import UserError
from vlmrl.runs import run_lock
from vlmrl.runs.run_lock import Superseded
from vlmrl.system import distributed
from vlmrl.system.files import append_line, write_bytes


def number(parent: Path, attempt: int) -> None:
    """Write what the launcher of the run in `parent`/run writes when it begins an attempt."""
    owner = dataclasses.asdict(run_lock.this_process(attempt))
    (parent / ".run.owner").write_text(json.dumps(owner))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run whose second attempt this process is."""
    monkeypatch.setenv("VLMRL_ATTEMPT", "2")
    number(tmp_path, 2)
    return tmp_path / "run"


def test_the_newest_attempt_writes_and_an_earlier_one_does_not(folder: Path) -> None:
    with run_lock.fenced(folder):
        write_bytes(folder / "a", b"one")
        append_line(folder / "b", {"step": 1})
        number(folder.parent, 3)
        with pytest.raises(Superseded, match=r"attempt 3 writes .*/run now; this is attempt 2"):
            write_bytes(folder / "a", b"two")
        with pytest.raises(Superseded):
            append_line(folder / "b", {"step": 2})
        with pytest.raises(Superseded):
            write_bytes(folder / "new/c", b"three")
    assert (folder / "a").read_bytes() == b"one"
    assert (folder / "b").read_text() == '{"step": 1}\n'
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b"]


def test_a_file_that_was_begun_in_time_does_not_appear_later(folder: Path) -> None:
    from vlmrl.system.files import write_whole

    def write(path: Path) -> None:
        path.write_bytes(b"late")
        number(folder.parent, 3)

    with run_lock.fenced(folder), pytest.raises(Superseded):
        write_whole(folder / "a", write)
    assert list(folder.iterdir()) == []


def test_a_run_folder_that_the_launcher_does_not_see_is_refused(folder: Path) -> None:
    folder.with_name(".run.owner").unlink()
    expected = r"\.run\.owner: expected attempt 2, got no file: the run folder must be visible"
    with pytest.raises(UserError, match=expected), run_lock.fenced(folder):
        pass
    folder.with_name(".run.owner").write_text('{"attempt": "two"}')
    with (
        pytest.raises(UserError, match="expected pid, host, start and attempt"),
        run_lock.fenced(folder),
    ):
        pass


def test_without_a_launcher_nothing_is_asked(tmp_path: Path) -> None:
    number(tmp_path, 7)
    with run_lock.fenced(tmp_path / "run"):
        write_bytes(tmp_path / "run/a", b"one")


def test_programs_that_are_no_rank_are_not_told_of_the_attempt() -> None:
    kept = {"PATH": "/bin", "VLMRL_OTHER": "1"}
    told = {"VLMRL_ATTEMPT": "2", "VLMRL_PARENT": "7", "RAY_ADDRESS": "x", "RANK": "0", **kept}
    assert distributed.outside(told) == kept


PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen(
    [sys.executable, "-c", sys.argv[1]],
    env={**os.environ, "VLMRL_PARENT": str(os.getpid())},
    stdout=subprocess.PIPE, start_new_session=True, text=True,
)
print(child.pid, child.stdout.readline(), flush=True)
time.sleep(600)
"""
CHILD = """
import subprocess, sys, time
from vlmrl.system.processes import end_if_asked
end_if_asked()
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid, flush=True)
time.sleep(600)
"""


def test_a_rank_and_what_it_started_end_with_its_parent() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    assert parent.stdout is not None
    found = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
    assert len(found) == 2 and all(process.is_running() for process in found)
    parent.kill()
    parent.wait()
    _, alive = psutil.wait_procs(found, timeout=60)
    assert [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.nightly
def test_a_run_that_was_given_up_stops_at_its_next_write(tmp_path: Path) -> None:
    run = tmp_path / "run"
    number(tmp_path, 1)
    more = ["run.steps=500", "sft=null", "evaluation=null", "run.save_every=1", f"run.dir={run}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "vlmrl", "train", "quickstart", *TINY, *more],
        env={**os.environ, "VLMRL_ATTEMPT": "1"},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        cwd=ROOT,
        text=True,
    )
    try:
        while not (run / "checkpoints/step-2").exists():
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.05)
        assert not (tmp_path / ".run.lock").exists()  # the launcher owns the folder
        number(tmp_path, 2)
        before = (run / "metrics.jsonl").read_text().splitlines()
        _, said = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 1
    assert f"attempt 2 writes {run} now; this is attempt 1" in said
    after = (run / "metrics.jsonl").read_text().splitlines()
    assert after[: len(before)] == before and len(after) <= len(before) + 1  # one was being written
    assert len(after) < 500
