"""Check verdicts, and combine several verdicts on one completion into one reward.

This is the one boundary at which a verifier may fail: an exception, or a value that is no finite
number in the declared range, becomes `Verdict.failed(reason)`, never a score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

from vlmrl.errors import UserError
from vlmrl.schema import Verdict
from vlmrl.scoring.reward_components import Component
from vlmrl.scoring.verifier import BatchVerifier, GroupVerifier, Verifier
from vlmrl.system.deadline_pool import CallFailed

__all__ = ["guard", "guard_many"]

ROUNDING = 1e-6
"""A score this close outside its range is float rounding: it is clamped, not a fault."""
MAX_REASON = 300
"""Characters of a fault's reason that are kept."""


def guard(verifier: Verifier, judge: Callable[..., Any], *arguments: Any) -> Verdict:
    """Return `judge(*arguments)` if that is a verdict that holds, else a verdict that says what failed.

    A user's verifier may raise anything and may call `exit()`: its fault, not the run's end.
    """
    try:
        return check_verdict(verifier, judge(*arguments))
    except (Exception, SystemExit) as error:
        return Verdict.failed(reason(error))


def guard_many(
    verifier: GroupVerifier | BatchVerifier,
    count: int,
    judge: Callable[..., Any],
    *arguments: Any,
) -> list[Verdict]:
    """Return the `count` verdicts of one call for a group or batch, flat; if the call fails, so do all."""
    try:
        found = judge(*arguments)
        if isinstance(verifier, BatchVerifier):
            found = [verdict for group in found for verdict in group]
        if len(found) != count:
            raise CallFailed(f"expected {count} verdicts, one a completion, got {len(found)}")
    except (Exception, SystemExit) as error:
        return [Verdict.failed(reason(error))] * count
    return [check_verdict(verifier, verdict) for verdict in found]


def check_verdict(verifier: Verifier, verdict: Any) -> Verdict:
    """Return the verdict if its score is a finite number in the verifier's range, else a failed one."""
    if not isinstance(verdict, Verdict):
        return Verdict.failed(f"returned {type(verdict).__name__}, not a Verdict")
    if verdict.fault is not None or not verdict.applies:
        return verdict
    for name, value in [("the score", verdict.score), *verdict.parts.items()]:
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            return Verdict.failed(f"{name} is {value!r}, not a finite number")
    assert verdict.score is not None
    score, low, high = float(verdict.score), verifier.low, verifier.high
    if not low - ROUNDING <= score <= high + ROUNDING:
        return Verdict.failed(f"the score {score:g} is outside [{low:g}, {high:g}]")
    return replace(verdict, score=min(max(score, low), high))


def reason(error: BaseException) -> str:
    """Return what an exception says, in one line."""
    text = str(error) if isinstance(error, CallFailed) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:MAX_REASON]


def combine(mode: str, scores: Sequence[tuple[Component, float]]) -> float:
    """Return one reward from the scores of the verifiers that apply to a completion.

    sum: Σ w·s. mean: Σ w·s / Σ w. product: Π s; a weight of 0 leaves a component out. gate: as
    mean, but 0 unless every gate's score is positive; a gate of weight 0 only gates.

    Raises:
        UserError: a mean whose weights do not add up to a positive number.
    """
    if mode == "gate" and any(c.gate and score <= 0 for c, score in scores):
        return 0.0
    scores = [(c, score) for c, score in scores if c.weight != 0]
    if mode == "product":
        return math.prod(score for _, score in scores)
    total = sum(c.weight * score for c, score in scores)
    if mode == "sum":
        return total
    weights = sum(c.weight for c, _ in scores)
    if weights <= 0:
        names = ", ".join(c.label for c, _ in scores)
        raise UserError(
            f"scoring.combine {mode}: the weights of {names} add up to {weights:g}, not more than 0"
        )
    return total / weights
