"""Goldens: runs, parts, help, schema and report are what they were when the stored hashes were written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parent / "goldens.py"
GROUPS = ("algorithms", "verifiers", "benchmarks", "report", "schema", "help")
HINT = "see tests/goldens/README.md: `make goldens-write` takes what you meant to change"


def compare(*groups: str) -> list[str]:
    """What the tool says, line by line; it needs settings of its own before torch is loaded."""
    command = [sys.executable, str(TOOL), "compare", *groups]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def compared() -> list[str]:
    return compare(*GROUPS)


@pytest.mark.parametrize("group", GROUPS)
def test_parts_and_texts_are_as_stored(compared: list[str], group: str) -> None:
    lines = [line for line in compared if line.startswith(f"{group}: ")]
    assert lines and lines[-1].endswith(("same", "alike")), "\n".join([*lines, HINT])


@pytest.mark.parametrize("group", ["runs", pytest.param("ranks", marks=pytest.mark.nightly)])
def test_runs_are_as_stored(group: str) -> None:
    lines = compare(group)
    assert lines and lines[-1].endswith(("same", "alike")), "\n".join([*lines, HINT])
