"""From per-token losses to one micro-batch's share of the batch's loss.

The denominators are global (over all micro-batches and ranks), so shares ADD UP: how a batch is cut
never changes the update. To add one, write a function of `Sums` and name it in `Aggregation`, the
choices of the config, and in `AGGREGATIONS`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

Aggregation = Literal["sequence", "token", "sum", "constant"]


class Sums(NamedTuple):
    """What an aggregation divides: a micro-batch's losses and lengths, and the totals of the batch."""

    losses: torch.Tensor
    """[B], each completion's loss summed over its tokens, times its weight."""
    lengths: torch.Tensor
    """[B], loss tokens of each completion."""
    num_tokens: int
    num_rollouts: int
    max_tokens: int


def sequence(sums: Sums) -> torch.Tensor:
    """Mean over completions of the mean over their tokens. GRPO, arXiv 2402.03300, eq. 3."""
    return (sums.losses / sums.lengths.clamp(min=1)).sum() / max(sums.num_rollouts, 1)


def token(sums: Sums) -> torch.Tensor:
    """Mean over all loss tokens of the batch. DAPO, arXiv 2503.14476, eq. 12."""
    return sums.losses.sum() / max(sums.num_tokens, 1)


def summed(sums: Sums) -> torch.Tensor:
    """Mean over completions of the sum over their tokens. LUSPO, arXiv 2602.05261; REINFORCE."""
    return sums.losses.sum() / max(sums.num_rollouts, 1)


def constant(sums: Sums) -> torch.Tensor:
    """Sum over tokens / (completions * max_tokens). Dr. GRPO, arXiv 2503.20783, section 3.2."""
    return sums.losses.sum() / max(sums.num_rollouts * sums.max_tokens, 1)


AGGREGATIONS = {"sequence": sequence, "token": token, "sum": summed, "constant": constant}


def aggregate(
    how: Aggregation,
    losses: torch.Tensor,
    mask: torch.Tensor,
    weights: torch.Tensor,
    num_tokens: int,
    num_rollouts: int,
    max_tokens: int,
) -> torch.Tensor:
    """Reduce to a scalar. `losses`, `mask` [B, T]; `weights` [B] multiply each completion's loss."""
    sums = weights * torch.where(mask, losses, 0.0).sum(-1)
    return AGGREGATIONS[how](Sums(sums, mask.sum(-1), num_tokens, num_rollouts, max_tokens))
