"""From per-token losses to one micro-batch's share of the batch's loss.

The denominators are global (over all micro-batches and ranks), so shares ADD UP: how a batch is cut
never changes the update.
"""

from __future__ import annotations

from typing import Literal

import torch

Aggregation = Literal["sequence", "token", "constant"]


def aggregate(
    how: Aggregation,
    losses: torch.Tensor,
    mask: torch.Tensor,
    weights: torch.Tensor,
    num_tokens: int,
    num_rollouts: int,
    max_tokens: int,
) -> torch.Tensor:
    """Reduce to a scalar. `losses`, `mask` [B, T]; `weights` [B] multiply each completion's loss.

    sequence  mean over completions of the mean over their tokens;
              Shao et al. 2024 (GRPO), arXiv 2402.03300, eq. 3
    token     mean over all loss tokens of the batch;
              Yu et al. 2025 (DAPO), arXiv 2503.14476, eq. 12
    constant  sum over tokens / (completions * max_tokens);
              Liu et al. 2025 (Dr. GRPO), arXiv 2503.20783, section 3.2
    """
    sums = weights * torch.where(mask, losses, 0.0).sum(-1)
    match how:
        case "sequence":
            return (sums / mask.sum(-1).clamp(min=1)).sum() / max(num_rollouts, 1)
        case "token":
            return sums.sum() / max(num_tokens, 1)
        case "constant":
            return sums.sum() / max(num_rollouts * max_tokens, 1)
