"""Folders for temporary files: a killed process's goes with its successor, a living one's stays."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vlmrl.system.launched.own_folder import OWNER, OwnFolder

HOLD = """
import sys
from vlmrl.system.launched.own_folder import OwnFolder
folder = OwnFolder("held-", sys.argv[1])
print(folder.name, flush=True)
input()
"""


@contextmanager
def holding(where: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Inside, another process has a folder of its own in `where`; it is killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(where)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield process, Path(process.stdout.readline().strip())
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def names(where: Path) -> set[str]:
    return {path.name for path in where.iterdir()}


def test_a_successor_removes_what_the_dead_left_and_nothing_of_the_living(tmp_path: Path) -> None:
    with holding(tmp_path) as (_, living):
        with holding(tmp_path) as (_, dead):
            (dead / "weights").write_bytes(b"1234")
            assert {living.name, dead.name} == names(tmp_path)
        assert dead.exists()  # killed: nobody has removed it
        own = OwnFolder(inside=tmp_path)
        assert names(tmp_path) == {living.name, Path(own.name).name}
        own.cleanup()
        assert names(tmp_path) == {living.name}
    with OwnFolder(inside=tmp_path) as last:
        assert names(tmp_path) == {Path(last).name}
    assert names(tmp_path) == set()


def test_what_is_no_folder_of_ours_or_of_another_machine_stays(tmp_path: Path) -> None:
    plain, elsewhere = tmp_path / "vlmrl-media-0", tmp_path / "vlmrl-elsewhere"
    for folder in (plain, elsewhere):
        folder.mkdir()
    (elsewhere / OWNER).write_text("another-machine")
    with holding(tmp_path) as (_, living):
        link = tmp_path / "vlmrl-link"
        link.symlink_to(living)
    OwnFolder(inside=tmp_path).cleanup()
    assert names(tmp_path) == {plain.name, elsewhere.name, link.name}


def test_a_folder_that_is_being_made_is_not_taken_for_a_dead_ones(tmp_path: Path) -> None:
    """Two processes that make and remove folders all the time never lose one that they hold."""
    script = (
        "import sys; from pathlib import Path\n"
        "from vlmrl.system.launched.own_folder import OwnFolder\n"
        "for n in range(200):\n"
        "    with OwnFolder(inside=sys.argv[1]) as name:\n"
        "        Path(name, 'x').write_text('x')\n"
        "        assert Path(name, 'x').exists()\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    both = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], env=environment)
        for _ in range(2)
    ]
    assert [process.wait(120) for process in both] == [0, 0]
    assert names(tmp_path) == set()
