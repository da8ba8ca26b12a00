"""What the loophole watch of a run found: its sentences, and the prompts to look at."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlmrl.runs import run_folder
from vlmrl.runs.rollout_rows import Row
from vlmrl.system.atomic_files import read_lines

__all__ = ["ABOUT", "alarm_rows", "alarm_sentences", "odd_flags"]

ABOUT = (
    "Prompts of the steps in which the reward began to rise for another reason than better answers, those "
    "first that gave rise to it most. `strict` is a completion's score by a strict reading, `elsewhere` "
    "what it earns with another prompt's truth."
)
SIGNS = {
    "candidates": "lists several candidates",
    "fallback": "not in plain form",
    "copied": "copied from the question",
    "repeated": "says the same twice",
}


def alarm_sentences(folder: Path) -> list[str]:
    """Return a sentence for each alarm of a run, with its step.

    Raises:
        UserError: loopholes.jsonl is damaged.
    """
    return [
        f"step {line['step']}: loophole? {text}"
        for line in _lines(folder)
        for text in line["alarms"].values()
    ]


def alarm_rows(folder: Path) -> dict[int, list[Row]]:
    """Return the prompts that were kept with alarms, by step.

    Raises:
        UserError: loopholes.jsonl is damaged.
    """
    return {line["step"]: line["rows"] for line in _lines(folder)}


def odd_flags(completion: Mapping[str, Any]) -> list[str]:
    """Return in words what the watch noted of a completion; none where it did not measure it."""
    facts = completion.get("loophole") or {}
    numbers = [f"{k} {facts[k]:.2f}" for k in ("strict", "elsewhere") if facts.get(k) is not None]
    return [SIGNS.get(sign, str(sign)) for sign in facts.get("signs", ())] + numbers


def _lines(folder: Path) -> list[dict[str, Any]]:
    path = run_folder.loopholes_path(folder)
    return read_lines(path) if path.exists() else []
