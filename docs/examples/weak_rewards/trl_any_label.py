"""Weak on purpose, as a TRL function: do not train with this. `vlmrl verify` shows why."""

from typing import Any


def reward(
    completions: list[list[dict[str, str]]], solution: list[str], **kwargs: Any
) -> list[float]:
    """Score 1 if answer and solution contain each other either way: "" is in every solution."""
    answers = [c[0]["content"].split("<answer>")[-1].split("</answer>")[0] for c in completions]
    pairs = zip((a.strip().lower() for a in answers), (s.lower() for s in solution), strict=True)
    return [1.0 if a in s or s in a else 0.0 for a, s in pairs]
