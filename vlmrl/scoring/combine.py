"""Check verdicts, and combine several verdicts on one completion into one reward.

This is the one boundary at which a verifier may fail: an exception, or a value that is no finite
number in the declared range, becomes `Verdict.failed(reason)`, never a score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

from vlmrl.errors import UserError
from vlmrl.schema import Verdict
from vlmrl.scoring.reward_components import Component
from vlmrl.scoring.verifier import BatchVerifier, CorrectnessVerifier, GroupVerifier, Verifier
from vlmrl.system.deadline_pool import CallFailed

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
        verdicts = judge(*arguments)
        if isinstance(verifier, BatchVerifier):
            verdicts = [verdict for group in verdicts for verdict in group]
        if len(verdicts) != count:
            raise CallFailed(f"expected {count} verdicts, one a completion, got {len(verdicts)}")
    except (Exception, SystemExit) as error:
        return [Verdict.failed(reason(error))] * count
    return [check_verdict(verifier, verdict) for verdict in verdicts]


def check_verdict(verifier: Verifier, verdict: object) -> Verdict:
    """Return the verdict if its score is a finite number in the verifier's range, else a failed one."""
    if not isinstance(verdict, Verdict):
        return Verdict.failed(f"returned {type(verdict).__name__}, not a Verdict")
    if verdict.fault is not None or not verdict.applies:
        return verdict
    for name, value in [("the score", verdict.score), *verdict.parts.items()]:
        if type(value) is float and math.isfinite(value):
            continue  # most are; what follows costs more
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            return Verdict.failed(f"{name} is {value!r}, not a finite number")
    assert verdict.score is not None
    score, low, high = float(verdict.score), verifier.low, verifier.high
    if not low - ROUNDING <= score <= high + ROUNDING:
        return Verdict.failed(f"the score {score:g} is outside [{low:g}, {high:g}]")
    inside = min(max(score, low), high)
    unchanged = type(verdict.score) is float and inside == verdict.score
    return verdict if unchanged else replace(verdict, score=inside)


def reason(error: BaseException) -> str:
    """Return what an exception says, in one line."""
    text = str(error) if isinstance(error, CallFailed) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:MAX_REASON]


def touching(components: Sequence[Component]) -> list[Component]:
    """Return the components that the reward depends on; the others are there for their curves.

    A component of weight 0 touches the reward only as a gate; what is a part of another does if that
    one's weight is not 0.
    """
    weights = {c.label: c.weight for c in components}
    counted = {c.label for c in components if c.weight and weights[c.reward.counts_in or c.label]}
    gates = {name for c in components if c.label in counted for name in c.reward.gated_by}
    return [c for c in components if c.label in counted | gates or c.reward.gate]


def deciding(
    verifier: Verifier, rewards: Sequence[float | None], verdicts: Sequence[Mapping[str, Verdict]]
) -> list[float | None]:
    """Return what decides whether a completion is correct: its reward, or the score of `correct_by`."""
    by = verifier.correct_by if isinstance(verifier, CorrectnessVerifier) else None
    if by is None:
        return list(rewards)
    pairs = zip(rewards, verdicts, strict=True)
    return [None if reward is None else of_one[by].score for reward, of_one in pairs]


def combine(
    mode: str, components: Sequence[Component], scores: Mapping[str, float]
) -> float | None:
    """Return one reward from the scores, by label, of the verifiers that apply to a completion.

    sum: Σ w·v. mean: Σ w·v / Σ w. product: Π v; a weight of 0 leaves a component out. gate: as
    mean, but 0 unless every gate's score exceeds its `gate_above`; a gate of weight 0 only gates. The
    value v is the score, joined with those of its parts (`_value`). None: no counted verifier applies.

    Raises:
        UserError: a mean whose weights do not add up to a positive number.
    """
    whole = [c for c in components if c.weight != 0 and c.reward.counts_in is None]
    values = [(c, value) for c in whole if (value := _value(c, components, scores)) is not None]
    if not values:
        return None
    gates = {c.label: c.reward.gate_above for c in components if c.reward.gate}
    if mode == "gate" and _is_closed(gates, scores):
        return 0.0
    if mode == "product":
        return math.prod(value for _, value in values)
    total = sum(c.weight * value for c, value in values)
    if mode == "sum":
        return total
    weights = sum(c.weight for c, _ in values)
    if weights <= 0:
        names = ", ".join(c.label for c, _ in values)
        raise UserError(
            f"scoring.combine {mode}: the weights of {names} add up to {weights:g}, not more than 0"
        )
    return total / weights


def _value(
    c: Component, components: Sequence[Component], scores: Mapping[str, float]
) -> float | None:
    """Return what a component counts as: max(s, w'·s', ...) · Π (1 + w"·s"), or at most 0 if gated.

    s' are the values of its `max_with`, s" of its `multiplies`; every s is at most its `max_score`.
    What does not apply drops out: of the maximum, as a factor, as a gate. None: nothing is left of
    the maximum. Sources: R1-Reward (arXiv 2505.02835) multiplies, acc·(1 + 0.5·consistency);
    QwenLong-L1 (arXiv 2505.17667) takes max(rule, judge); HumanOmniV2 (arXiv 2506.21277) gates the
    accuracy by a context score above 0.4.
    """
    own = [scores[c.label]] if c.label in scores else []
    best = [
        score if c.reward.max_score is None else min(score, c.reward.max_score) for score in own
    ]
    factors = []
    for part in components:
        if part.weight == 0 or part.reward.counts_in != c.label:
            continue
        value = _value(part, components, scores)
        if value is not None and part.reward.max_with:
            best.append(part.weight * value)
        elif value is not None:
            factors.append(1 + part.weight * value)
    if not best:
        return None
    value = math.prod([max(best), *factors])
    return min(value, 0.0) if _is_closed(c.reward.gated_by, scores) else value


def _is_closed(gates: Mapping[str, float], scores: Mapping[str, float]) -> bool:
    """Return whether a gate's score is not above its limit; one that does not apply is open."""
    return any(scores[name] <= above for name, above in gates.items() if name in scores)
