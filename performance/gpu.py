"""One command for a GPU day: check and measure what only a GPU can show, in order of worth.

    python performance/gpu.py [--minutes 25] [--only NAME ...] [--out FOLDER] [--dry-run]

Builds a Qwen2.5-VL of 3B's shape with random weights on the device and runs the checks that
`--help` lists. Of each the folder `--out` gets lines of JSON as they come, and a page that is written
anew after each line, so a run that is killed keeps what it has measured; a second run with the same
folder adds to it. A check whose packages are missing, or for which no time is left, is skipped with a
sentence; one that fails is reported with its error, and the next one begins. Out of memory is a result.

Milliseconds are medians (± longest - shortest) by CUDA events, after a warm-up; peak is the most that
torch's allocator gave out, weights included. Without a GPU there is only `--dry-run`: the same code on
a tiny model with one repeat, which shows that the command works; times are then of the CPU and peaks
are beyond what was allocated before. Exits with 1 if a check failed.

A machine without a network needs wheels that travel with the tree, see performance/README.md.
"""

from __future__ import annotations

import argparse
import datetime
import gc
from importlib.util import find_spec
from pathlib import Path

NEEDED = (
    "torch",
    "torchvision",
    "transformers",
    "scipy",
    "psutil",
    "yaml",
    "pydantic",
    "pydantic_core",
)
NEEDED += ("annotated_types", "typing_inspection", "rapidfuzz", "pycocotools")
"""Packages without which no check runs, by the names under which they are imported."""


def main() -> None:
    if lacking := [package for package in NEEDED if find_spec(package) is None]:
        raise SystemExit(
            f"not installed: {', '.join(lacking)}. Where nothing can be installed from a network, wheels "
            "travel with the tree: see performance/README.md"
        )
    from gpu_day.checks import CHECKS
    from gpu_day.day import Day
    from gpu_day.device import ON_GPU, describe
    from gpu_day.eight_cards import describe_paper
    from gpu_day.report import Report
    from gpu_day.run import run_checks

    gc.freeze()  # what libraries are made of is not looked through before every measurement
    names = [check.name for check in CHECKS]
    listed = [f"  {c.name} ({c.minutes:g} minutes): {c.question} {c.missing}" for c in CHECKS]
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="\n".join(
            ["checks, in order of worth:", *listed, "", "on paper, for 8 cards:", *describe_paper()]
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=25, help="of the clock, for all checks")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), metavar="FOLDER")
    parser.add_argument("--dry-run", action="store_true", help="a tiny model, on any machine")
    asked = parser.parse_args()
    if not (ON_GPU or asked.dry_run):
        raise SystemExit("there is no GPU here: --dry-run shows that the command works")
    report = Report(asked.out, datetime.datetime.now().isoformat(timespec="seconds"))
    about = describe()
    report.machine({**about, "model": "tiny" if asked.dry_run else "3B's shape"})
    print(*(f"{key}: {value}" for key, value in about.items()), sep="\n", flush=True)
    chosen = [check for check in CHECKS if check.name in asked.only]
    failed = run_checks(chosen, Day(asked.dry_run), report, asked.minutes)
    print(asked.out / "gpu.md")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
