"""Write or compare the goldens: hashes of what the package does, by which a commit proves that nothing moved.

    python tests/goldens/goldens.py compare [GROUP...]
    python tests/goldens/goldens.py write [GROUP...]
    python tests/goldens/goldens.py --list

`stored/GROUP.txt` has a line `name  hash` for each thing, so that a diff names what changed. What was hashed
lies in `build/goldens/GROUP/` afterwards: `diff -r` with that of another checkout shows how.

Bits of floats depend on the kind of CPU and on the versions of libraries. On a machine whose probe is not the
stored one the numbers of `stored/GROUP.json` are compared instead, within a tolerance.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
GROUPS = {
    "runs": "five steps of the quickstart in ten settings",
    "ranks": "the same on two processes: ddp, fsdp2",
    "algorithms": "advantages, loss and gradient on one fixed input",
    "verifiers": "verdicts on attacks and on honest answers",
    "benchmarks": "prompts, and results of stored answers",
    "report": "the report of the run in tests/goldens/run",
    "schema": "the schema of configs, by section",
    "help": "`--help` of each command, and what `vlmrl list` prints",
}
"""In the order in which they are made: runs are forks, so they come before other work."""
NO_WIDE_UNITS = ",".join(
    f"-{unit}" for unit in ("AVX512F", "AVX512VL", "AVX2", "AVX", "FMA", "FMA4")
)
PINNED = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OPENBLAS_CORETYPE": "Nehalem",
    "GLIBC_TUNABLES": f"glibc.cpu.hwcaps={NO_WIDE_UNITS}",
    "PYTHONHASHSEED": "0",
    "HF_HUB_OFFLINE": "1",
    "COLUMNS": "100",
    "LINES": "40",
    "NO_COLOR": "1",
    "TERM": "dumb",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests"))),
}
"""Read when a library is loaded: with them most kinds of x86 CPU compute the same bits."""
UNSET = ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "RANK", "WORLD_SIZE", "LOCAL_RANK")


def main() -> int:
    """Run the command line; the exit code is 1 if something differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", nargs="?", choices=("write", "compare"))
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}")
    parser.add_argument("--list", action="store_true", help="name the groups")
    asked = parser.parse_args()
    if asked.list:
        print("\n".join(f"{name:11} {what}" for name, what in GROUPS.items()))
        return 0
    if unknown := {*asked.groups} - {*GROUPS}:
        parser.error(
            f"no group is named {', '.join(sorted(unknown))}; there are: {', '.join(GROUPS)}"
        )
    if asked.action is None:
        parser.error("expected write or compare")
    _restart_pinned()
    groups = [name for name in GROUPS if name in asked.groups or not asked.groups]
    return _write(groups) if asked.action == "write" else _compare(groups)


def _restart_pinned() -> None:
    """Begin again with the pinned environment, which libraries read only once."""
    if any(os.environ.get(name) != value for name, value in PINNED.items()):
        kept = {name: value for name, value in os.environ.items() if name not in UNSET}
        os.execve(sys.executable, [sys.executable, *sys.argv], {**kept, **PINNED})


def _write(groups: list[str]) -> int:
    import machine
    import made

    for name in groups:
        shutil.rmtree(made.contents(name), ignore_errors=True)
        golden = made.make(name)
        made.write_lines(HERE / "stored" / f"{name}.txt", golden.hashes)
        if golden.numbers:
            made.write_numbers(HERE / "stored" / f"{name}.json", golden.numbers)
            made.write_lines(HERE / "stored" / "machine.txt", machine.probe())
        print(f"{name}: {len(golden.hashes)} lines written", flush=True)
    return 0


def _compare(groups: list[str]) -> int:
    import machine
    import made

    differing = 0
    same_machine = machine.probe() == made.read_lines(HERE / "stored" / "machine.txt")
    for name in groups:
        shutil.rmtree(made.contents(name), ignore_errors=True)
        golden = made.make(name)
        stored = made.read_lines(HERE / "stored" / f"{name}.txt")
        bits = same_machine or not golden.numbers
        problems = [*made.differences(stored, golden.hashes, names_only=not bits)]
        outcome = f"{len(stored)} lines, same"
        if not bits:
            numbers = made.read_numbers(HERE / "stored" / f"{name}.json")
            problems += made.distances(numbers, golden.numbers, golden.tolerance)
            outcome = f"other machine: bits not compared; {len(numbers)} lines of numbers, alike"
        print("\n".join(f"{name}: {line}" for line in problems or [outcome]), flush=True)
        differing += len(problems)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
