"""Something done again and again, each time killed one call later, until it is done whole."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]


MOST = 1000


def kill_at_each_call(folder: Path, act: Callable[[Path, int], None]) -> None:
    """Fork `act(folder/n, n)` for n = 0, 1 ... until one is not killed; `act` ends its own process."""
    for call in range(MOST):
        child = os.fork()
        if child == 0:
            act(folder / str(call), call)
        _, status = os.waitpid(child, 0)
        if status == 0:
            return
    raise AssertionError(f"killed at each of {MOST} calls")


def folders_of(module: str, folder: Path) -> list[Path]:
    """Run a module of helpers that does so, in a process of its own, and return its folders in order."""
    paths = os.pathsep.join([str(ROOT), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths}
    command = [sys.executable, "-m", f"helpers.{module}", str(folder)]
    subprocess.run(command, check=True, env=environment)
    folders = sorted(folder.iterdir(), key=lambda path: int(path.name))
    assert len(folders) > 10
    return folders
