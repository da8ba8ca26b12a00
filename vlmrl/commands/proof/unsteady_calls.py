"""Find calls that returned something else when the same steps were run again.

A tool that is no function of its arguments is then known by what it did, whether it says so or not.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vlmrl.commands.proof.compare import pair_rows, untimed

__all__ = ["find_unsteady_calls"]


def find_unsteady_calls(run: Path, again: Path, start: int, end: int) -> list[str]:
    """Return a sentence for each function whose same call returned something else, with its first place.

    Only completions that agree up to the call count: a policy that is shown something else writes something
    else.
    """
    found: dict[str, str] = {}
    pairs = (pair_rows(part, run, again, start, end) for part in ("rollouts", "evals"))
    for step, a, b in itertools.chain.from_iterable(pairs):
        for one, other in zip(*(_completions(row) for row in (a, b)), strict=False):
            for name in _first_unsteady(one, other):
                found.setdefault(name, f"first in step {step}, row {(a or b)['id']}")
    return [
        f"calls of {name!r} returned something else for the same arguments: {place}"
        for name, place in found.items()
    ]


def _completions(row: Mapping[str, Any] | None) -> list[Any]:
    return [completion.get("segments", []) for completion in row["completions"]] if row else []


def _first_unsteady(one: list[Any], other: list[Any]) -> Iterator[str]:
    """Yield the functions whose results are where two completions part; nothing if the policy's text is."""
    asked: list[Any] = []
    for a, b in zip(one, other, strict=False):
        if a["by"] != b["by"] or (a["by"] == "policy" and a["text"] != b["text"]):
            return
        if a["by"] == "tool" and _seen(a) != _seen(b):
            yield from dict.fromkeys(call["name"] for call in asked)
            return
        parted = [
            x["name"]
            for x, y in zip(a["calls"], b["calls"], strict=False)
            if untimed(x) != untimed(y)
        ]
        if parted:
            yield from dict.fromkeys(parted)
            return
        asked = a["calls"]


def _seen(segment: Mapping[str, Any]) -> tuple[Any, ...]:
    return segment["text"], segment["media"], segment["reward"]
