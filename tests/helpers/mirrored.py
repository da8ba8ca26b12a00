"""Small run folders and stores for the tests of mirrors.

    python -m helpers.mirrored FOLDER

copies step-1 and then step-2 of a run in FOLDER/n/run to a store in FOLDER/n/store; the process that does
so is killed half way through its n-th write to the store. The last one is not.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from helpers.killed_forks import kill_at_each_call
from vlmrl.runs.mirror import Mirror, Store
from vlmrl.system.files import write_checksums


def write_step(folder: Path, step: int, size: int = 1000) -> Path:
    """Add a step, with the checkpoint after it, to a run folder."""
    home = folder / f"checkpoints/step-{step}"
    (home / "trainer").mkdir(parents=True)
    (home / "model.safetensors").write_bytes(bytes([step]) * size)
    state = {"phase": "rl", "step": step, "format": 3}
    (home / "trainer/state.json").write_text(json.dumps(state))
    write_checksums(home, home / "trainer")
    (folder / "rollouts").mkdir(exist_ok=True)
    (folder / f"rollouts/step-{step}.jsonl").write_text(json.dumps({"step": step}) + "\n")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": step}) + "\n")
    return home


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def begin(folder: Path, url: str, keep: int = 9, tell: Callable[[str], None] = print) -> Mirror:
    """Begin to copy a run folder."""
    mirror = Mirror(url, folder, keep, tell)
    mirror.begin()
    return mirror


def restore(folder: Path, url: str, tell: Callable[[str], None] = print) -> Path | None:
    """Return the checkpoint that a fresh run folder gets from a mirror."""
    return Mirror(url, folder, 9, tell).restore(None)


def copy_twice(folder: Path, call: int) -> None:
    """Copy step-1 and step-2, and be killed half way through this write."""
    calls, real = 0, Store.write

    def write(self: Store, name: str, source: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > call:
            data = source.read()
            real(self, name, io.BytesIO(data[: len(data) // 2]))
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, name, source)

    Store.write = write  # type: ignore[method-assign]
    run = folder / "run"
    write_step(run, 1)
    mirror = begin(run, f"file://{folder}/store")
    mirror.follow(None)
    mirror.finish()
    write_step(run, 2)
    mirror.follow(None)
    mirror.finish()
    os._exit(0)


if __name__ == "__main__":
    kill_at_each_call(Path(sys.argv[1]), copy_twice)
