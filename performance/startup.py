"""Measure what commands cost to start, against the bounds of budget.yaml.

`python performance/startup.py [--rounds 7]` prints two tables. The first has user and system seconds of child
processes, relative to importing the libraries they stand on: medians over rounds in which all commands take
turns, so that a busy machine slows all alike. The second has lines of the package that are loaded,
which no machine changes. `--grown` prints what is above its bound alone, and then exits with 1.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
BUDGET = ROOT / "performance" / "budget.yaml"
PACKAGE = ("vlmrl", "rewards", "datasets", "benchmarks")
BASE = "import pydantic, typer, rich, yaml"
LIST_FILES = """
import atexit, sys
files = lambda: (getattr(module, "__file__", None) for module in sys.modules.values())
atexit.register(lambda: print("", *filter(None, files()), sep="\\n"))
"""


def cpu_seconds(arguments: list[str], tree: Path = ROOT) -> float:
    """Return the user and system seconds of one run of Python in a tree, its children included."""
    # As users run it: a process that may not write bytecode compiles what others have compiled.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, cwd=tree, env=environment
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{tree}: {arguments}: exit status {status}")
    return usage.ru_utime + usage.ru_stime


def ratios(commands: list[str], rounds: int) -> dict[str, tuple[float, float]]:
    """Return the CPU seconds of each command and their ratio to importing the libraries."""
    cases = {BASE: ["-c", BASE], **{c: ["-m", *c.split()] for c in commands}}
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, arguments in cases.items():
            seconds[name].append(cpu_seconds(arguments))
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    return {name: (median, median / medians[BASE]) for name, median in medians.items()}


def loaded_lines(program: str) -> dict[str, int]:
    """Return how many lines of the package a program in Python loads, by room, most first."""
    command = [sys.executable, "-c", LIST_FILES + program]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    rooms: dict[str, int] = {}
    for file in map(Path, output.splitlines()):
        if file.suffix == ".py" and file.is_relative_to(ROOT):
            folder, *inside = file.relative_to(ROOT).parts
            if folder not in PACKAGE:
                continue
            room = inside[0] if folder == "vlmrl" else folder
            rooms[room] = rooms.get(room, 0) + len(file.read_text(encoding="utf-8").splitlines())
    return dict(sorted(rooms.items(), key=lambda item: -item[1]))


def read_budget() -> dict[str, Any]:
    """Return the bounds: `cpu` by command, `lines` by program."""
    budget: dict[str, Any] = yaml.safe_load(BUDGET.read_text(encoding="utf-8"))
    return budget


def main() -> None:
    """Print the tables, or what is above its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--grown", action="store_true", help="print what is above its bound")
    asked = parser.parse_args()
    budget, grown = read_budget(), []
    commands = budget["cpu"]
    table = ["| command | CPU s | ratio | bound | goal |", "|---|---|---|---|---|"]
    for name, (seconds, ratio) in ratios([*commands], asked.rounds).items():
        bound = commands.get(name, {"most": "", "goal": ""})
        table.append(
            f"| `{name}` | {seconds:.2f} | {ratio:.1f} | {bound['most']} | {bound['goal']} |"
        )
        if name in commands and ratio > bound["most"]:
            grown.append(f"{name}: {ratio:.1f} times the libraries, bound {bound['most']}")
    table += ["", "| program | lines | bound | most of them in |", "|---|---|---|---|"]
    for program, most in budget["lines"].items():
        rooms = loaded_lines(program)
        first = ", ".join(f"{room} {lines:,}" for room, lines in [*rooms.items()][:4])
        total = sum(rooms.values())
        table.append(f"| `{program}` | {total:,} | {most:,} | {first} |")
        if total > most:
            grown.append(f"{program}: {total:,} lines, bound {most:,}: {first}")
    print(*(grown if asked.grown else table), sep="\n")
    if asked.grown and grown:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
