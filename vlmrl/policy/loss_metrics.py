"""Metrics of an update: sums over its loss tokens, added over micro-batches and ranks, then averaged."""

from __future__ import annotations

from collections.abc import Mapping

import torch

WORST = "rollout/logprob_max_ratio"
"""The one metric of an update that is a maximum, not a mean over tokens."""
OF_TURN, COUNT_OF_TURN = "turn/", "tokens_of_turn/"
"""Begin the names of a turn's sums, and of the number of its tokens; turns are counted from 1."""


def add(sums: dict[str, float], more: Mapping[str, float]) -> None:
    """Add `more` to `sums` in place; of `WORST` keep the larger."""
    for key, value in more.items():
        before = sums.get(key, 0.0)
        sums[key] = max(before, value) if key == WORST else before + value


def averages(sums: Mapping[str, float], tokens: int, updates: int) -> dict[str, float]:
    """Return means over `tokens`; the loss is a mean over updates, and `WORST` is unchanged.

    The gaps of turns are means over the turn's own tokens, left out where no row has two turns.
    """
    whole = ("loss/total", WORST)
    means = {
        key: value / max(tokens, 1)
        for key, value in sums.items()
        if key not in whole and not key.startswith((OF_TURN, COUNT_OF_TURN))
    }
    loss = sums.get("loss/total", 0.0) / max(updates, 1)
    counts = {
        f"turn/logprob_gap/{key.removeprefix(COUNT_OF_TURN)}": value
        for key, value in sums.items()
        if key.startswith(COUNT_OF_TURN)
    }
    gaps = {n: sums[n] / count for n, count in counts.items()} if len(counts) > 1 else {}
    return {**means, **gaps, WORST: sums.get(WORST, 1.0), "loss/total": loss}


def engine_gap(gap: torch.Tensor, turns: torch.Tensor | None = None) -> dict[str, float]:
    """Return how far the engine's log-probs are from the trainer's, from their differences at loss tokens.

    All of it is 0, and the largest ratio 1, for an exact engine. `turns` says which turn of the policy
    each token is in, from 0; None: the first. The KL(engine || trainer) is Schulman's k3:
    http://joschu.net/blog/kl-approx.html
    """
    off = gap.abs()
    total = off.sum().item()
    by_turn = {1: (total, float(gap.numel()))}
    if turns is not None:
        chosen = {int(turn): turns == turn for turn in turns.unique()}
        by_turn = {n + 1: (off[own].sum().item(), float(own.sum())) for n, own in chosen.items()}
    return {
        "rollout/logprob_gap": total,
        "rollout/logprob_kl": (gap.exp() - 1 - gap).sum().item(),
        WORST: off.max().exp().item() if gap.numel() else 1.0,
        **{f"turn/logprob_gap/{n}": gap_sum for n, (gap_sum, _) in by_turn.items()},
        **{f"{COUNT_OF_TURN}{n}": tokens for n, (_, tokens) in by_turn.items() if tokens},
    }
