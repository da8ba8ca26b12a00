"""Measure how much CPU time commands take to start, relative to importing the libraries they stand on.

`python performance/startup.py [--rounds 7]` prints a table. User and system seconds of child
processes, medians over rounds in which all commands take turns, so that a busy machine slows all alike.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys

BASE = ["-c", "import pydantic, typer, rich, yaml"]
CASES = {
    "`import pydantic, typer, rich, yaml`": (BASE, None),
    "`vlmrl --help`": (["-m", "vlmrl", "--help"], 2),
    "`vlmrl list families`": (["-m", "vlmrl", "list", "families"], 8),
    "`vlmrl config validate quickstart`": (["-m", "vlmrl", "config", "validate", "quickstart"], 5),
}
"""Name -> arguments of Python, and the ratio to the first that it should not exceed."""


def cpu_seconds(arguments: list[str]) -> float:
    """Return the user and system seconds of one run of Python, its children included."""
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{arguments}: exit status {status}")
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    seconds: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(rounds):
        for name, (arguments, _) in CASES.items():
            seconds[name].append(cpu_seconds(arguments))
    base = statistics.median(next(iter(seconds.values())))
    print("| command | CPU s | ratio | goal |\n|---|---|---|---|")
    for name, (_, goal) in CASES.items():
        median = statistics.median(seconds[name])
        wanted = f"≤ {goal}" if goal else ""
        print(f"| {name} | {median:.2f} | {median / base:.1f} | {wanted} |")


if __name__ == "__main__":
    main()
