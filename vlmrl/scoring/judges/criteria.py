"""What a judge is asked for, how its reply is read, and how its scores become one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmrl.system.chat_endpoint import Invalid

__all__ = ["Criterion", "aggregate", "check_criteria", "check_scale", "read_object", "read_scores"]

MAX_REPLY = 16_384
"""Characters of a judge's reply that are read."""
VETO = 0.5
"""A veto criterion below this, in [0, 1], makes the whole score 0."""


@dataclass(frozen=True)
class Criterion:
    """One line of a judge's rubric; `veto`: below half of the scale it makes the whole score 0."""

    name: str
    text: str
    weight: float = 1.0
    veto: bool = False
    max_score: float = 1.0
    """In (0, 1]: what is above it counts as this much, so that excelling here makes up for no other."""


def check_scale(scale: tuple[float, float]) -> None:
    """Refuse a scale that does not rise.

    Raises:
        ValueError: its first score is not below its second.
    """
    if not scale[0] < scale[1]:
        raise ValueError(f"expected a scale from the worst to the best score, got {scale}")


def check_criteria(criteria: Sequence[Criterion]) -> None:
    """Refuse criteria that make no sense.

    Raises:
        ValueError: names that are not unique, weights that add up to nothing, a limit outside (0, 1].
    """
    names = {c.name for c in criteria}
    if len(names) < len(criteria) or "reason" in names:
        raise ValueError("each criterion has a name of its own, other than 'reason'")
    if criteria and not sum(c.weight * c.max_score for c in criteria) > 0:
        raise ValueError("the weights of the rubric add up to nothing")
    for c in criteria:
        if not 0 < c.max_score <= 1:
            raise ValueError(
                f"criterion {c.name!r}: expected a max_score above 0 and at most 1, got {c.max_score:g}"
            )


def aggregate(
    criteria: Sequence[Criterion], scores: Mapping[str, float]
) -> tuple[float, tuple[str, ...]]:
    """Return Σ w·min(s, m) / Σ w·m, in [0, 1], and the criteria that veto: with any, it is 0."""
    vetoed = tuple(c.name for c in criteria if c.veto and scores[c.name] < VETO)
    if vetoed:
        return 0.0, vetoed
    best = sum(c.weight * c.max_score for c in criteria)
    return sum(c.weight * min(scores[c.name], c.max_score) for c in criteria) / best, ()


def read_object(reply: str, names: Sequence[str]) -> dict[str, Any]:
    """Return the JSON object that a reply is, which has these keys and perhaps a `reason`.

    The judge's own thought before it and a fence around it are skipped.

    Raises:
        Invalid: it is anything else.
    """
    text = reply.rpartition("</think>")[2].strip()
    if text.startswith("```") and text.endswith("```"):
        text = text[3:-3].removeprefix("json").strip()
    try:
        if len(text) > MAX_REPLY:
            raise ValueError("too long")
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"no JSON object: {reply[:80]!r}") from error
    if not isinstance(found, dict) or set(found) - {"reason"} != set(names):
        raise Invalid(f"the keys {', '.join(names)} were asked for: {reply[:80]!r}")
    return found


def read_scores(
    reply: str, names: Sequence[str], scale: tuple[float, float]
) -> tuple[dict[str, float], str]:
    """Return the scores of a reply, clamped to the scale and mapped to [0, 1], and its reason.

    Raises:
        Invalid: see `read_object`; a score is no number.
    """
    found = read_object(reply, names)
    low, high = scale
    scores = {}
    for name in names:
        value = found[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            raise Invalid(f"{name} is no number: {reply[:80]!r}")
        scores[name] = (min(max(value, low), high) - low) / (high - low)
    return scores, str(found.get("reason", ""))[:200]
