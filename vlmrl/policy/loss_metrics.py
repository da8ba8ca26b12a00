"""Metrics of an update: sums over its loss tokens, added over micro-batches and ranks, then averaged."""

from __future__ import annotations

from collections.abc import Mapping

import torch

WORST = "rollout/logprob_max_ratio"
"""The one metric of an update that is a maximum, not a mean over tokens."""


def add(sums: dict[str, float], more: Mapping[str, float]) -> None:
    """Add `more` to `sums` in place; of `WORST` keep the larger."""
    for key, value in more.items():
        before = sums.get(key, 0.0)
        sums[key] = max(before, value) if key == WORST else before + value


def averages(sums: Mapping[str, float], tokens: int, updates: int) -> dict[str, float]:
    """Return means over `tokens`; the loss is a mean over updates, and `WORST` is unchanged."""
    whole = ("loss/total", WORST)
    means = {key: value / max(tokens, 1) for key, value in sums.items() if key not in whole}
    loss = sums.get("loss/total", 0.0) / max(updates, 1)
    return {**means, WORST: sums.get(WORST, 1.0), "loss/total": loss}


def engine_gap(gap: torch.Tensor) -> dict[str, float]:
    """Return how far the engine's log-probs are from the trainer's, from their differences at loss tokens.

    All of it is 0, and the largest ratio 1, for an exact engine. The KL(engine || trainer) is
    Schulman's k3: http://joschu.net/blog/kl-approx.html
    """
    return {
        "rollout/logprob_gap": gap.abs().sum().item(),
        "rollout/logprob_kl": (gap.exp() - 1 - gap).sum().item(),
        WORST: gap.abs().max().exp().item() if gap.numel() else 1.0,
    }
