"""Commands on a disk that is full from their k-th write on: real calls of the system that fail.

A shared library (`full_disk.c`) stands between every library and the system, so that no write of a
command is missed, whoever makes it. It has to be there before Python is: `fill` starts a process.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NEVER = 1 << 40


@dataclass(frozen=True)
class Filled:
    """What became of a command whose `number`-th write was the first to fail; 0: none did."""

    number: int
    call: str
    code: int
    said: str
    left: list[str]
    folder: str


def fill(
    folder: Path, command: Sequence[str], numbers: int | None, for_ever: bool = True
) -> list[Filled]:
    """Run `vlmrl COMMAND` on copies of `folder`/before, each full from another write on.

    `{here}` in the command is the copy, and `{name}` its name. `numbers` writes, evenly spread, are tried;
    None: every one. Unless `for_ever` one write fails and the next finds room. The first outcome is of a
    disk that never fills.
    """
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler (cc)")
    library = folder / "full_disk.so"
    build = ["cc", "-shared", "-fPIC", "-o", str(library), str(HERE / "full_disk.c"), "-ldl"]
    subprocess.run(build, check=True)
    order = json.dumps([str(folder), list(command), numbers, for_ever])
    environment = {
        **os.environ,
        "LD_PRELOAD": str(library),
        "PYTHONPATH": os.pathsep.join([str(HERE.parent), *sys.path]),
    }
    done = subprocess.run(
        [sys.executable, "-m", "helpers.full_disk", order],
        env=environment,
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [Filled(**json.loads(line)) for line in done.stdout.splitlines()]


def _fill_all(folder: Path, command: list[str], numbers: int | None, for_ever: bool) -> None:
    calls = folder / "calls"
    whole = _run(folder, "0", command, NEVER, NEVER, calls)
    _tell(whole)
    made = calls.read_text().splitlines()
    count = len(made) if numbers is None else min(numbers, len(made))
    for number in sorted({1 + i * len(made) // count for i in range(count)}):
        last = NEVER if for_ever else number
        _tell(_run(folder, str(number), command, number, last, calls))


def _run(folder: Path, name: str, command: list[str], first: int, last: int, calls: Path) -> Filled:
    from vlmrl.cli import main
    from vlmrl.runs import mirror
    from vlmrl.system import files

    files.RETRY_S = mirror.AGAIN_S = 0.0
    here, shim = folder / name, ctypes.CDLL(None)
    shutil.copytree(folder / "before", here)
    sys.argv = ["vlmrl", *(_named(word, here) for word in command)]
    heard = io.StringIO()
    with contextlib.redirect_stderr(heard), contextlib.redirect_stdout(io.StringIO()):
        limits = ctypes.c_long(first), ctypes.c_long(last)
        shim.full_disk_arm(f"{here}/".encode(), *limits, str(calls).encode())
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            shim.full_disk_arm(b"", *limits, None)
    made = calls.read_text().splitlines()
    call = made[first - 1] if first <= len(made) else ""
    return Filled(
        0 if first == NEVER else first, call, code, heard.getvalue(), list(_left(here)), str(here)
    )


def _named(word: str, here: Path) -> str:
    return word.replace("{here}", str(here)).replace("{name}", here.name)


def _left(folder: Path) -> Iterator[str]:
    """Yield the hidden files and those in the making; both are to be gone when a command has ended.

    The file of a run's lock stays: a lock that is taken while its file is removed would be two locks.
    """
    for path in sorted(folder.rglob("*")):
        is_lock = path.name.startswith(".") and path.suffix == ".lock"
        if (path.name.startswith(".") and not is_lock) or path.suffix == ".part":
            yield path.relative_to(folder).as_posix()


def _tell(outcome: Filled) -> None:
    print(json.dumps(asdict(outcome)), flush=True)


if __name__ == "__main__":
    _fill_all(Path((order := json.loads(sys.argv[1]))[0]), *order[1:])
