"""Credit by turn: what a rollout earned from each of its turns on, against others that came as far."""

from __future__ import annotations

from collections.abc import Sequence

from vlmrl.algorithms.parts.filters import SPREAD
from vlmrl.schema import Completion

__all__ = ["advantages_by_turn", "returns_by_turn", "spread_over_tokens"]


def returns_by_turn(rewards: Sequence[float], terminal: float, gamma: float) -> list[float]:
    """Return R_t = sum over k >= t of gamma^(k - t) r_k for every turn; `terminal` is paid on the last."""
    found: list[float] = []
    later = terminal
    for reward in reversed(rewards):
        later = reward + (gamma * later if found else later)
        found.append(later)
    return found[::-1]


def advantages_by_turn(
    returns: Sequence[Sequence[float]], valid: Sequence[bool]
) -> list[list[float]]:
    """Return for every turn of a group's rollouts its return less the baseline of that turn.

    The baseline of turn t is the mean over the valid rollouts that reach it; where fewer than two do,
    over all valid ones, of which those that ended before count with their last turn. Rollouts that are not
    valid, and turns at which all returns are equal, get 0.
    """
    values = [[0.0] * len(of_one) for of_one in returns]
    used = [g for g, known in enumerate(valid) if known]
    for turn in range(max((len(returns[g]) for g in used), default=0)):
        reached = [g for g in used if len(returns[g]) > turn]
        among = reached if len(reached) > 1 else used
        known = [returns[g][min(turn, len(returns[g]) - 1)] for g in among]
        if max(known) - min(known) <= SPREAD:
            continue
        mean = sum(known) / len(known)
        for g in reached:
            values[g][turn] = returns[g][turn] - mean
    return values


def spread_over_tokens(completion: Completion, values: Sequence[float]) -> list[float]:
    """Return the value of its turn for each token that the policy wrote."""
    pairs = zip(completion.turns, values, strict=True)
    return [value for turn, value in pairs for _ in turn.token_ids]
