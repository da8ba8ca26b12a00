"""Per-token estimates of KL(policy || reference) on tokens that the policy sampled.

Source: Schulman 2020, "Approximating KL divergence" (joschu.net/blog/kl-approx.html).
"""

from __future__ import annotations

from typing import Literal

import torch

Estimator = Literal["k1", "k2", "k3"]

LOG_BOUND = 20.0
"""|log ref - log new| is cut here, so that k3 cannot overflow."""


def kl(
    estimator: Estimator, new: torch.Tensor, ref: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Estimate the divergence per token, [B, T]; 0 outside the mask. With d = ref - new:

    k1 = -d              unbiased, either sign; as a loss its on-policy gradient is 0 on average
    k2 = d^2 / 2         biased, but its on-policy gradient is the divergence's own
    k3 = exp(d) - d - 1  unbiased, never negative; Shao et al. 2024 (GRPO), arXiv 2402.03300, eq. 4
    """
    d = torch.where(mask, ref - new, 0.0).clamp(-LOG_BOUND, LOG_BOUND)
    match estimator:
        case "k1":
            return -d
        case "k2":
            return d.square() / 2
        case "k3":
            return d.exp() - d - 1
