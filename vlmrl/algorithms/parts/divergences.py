"""Per-token estimates of KL(policy || reference) on tokens that the policy sampled.

Source: Schulman 2020, "Approximating KL divergence" (joschu.net/blog/kl-approx.html). To add one,
write a function of d = log reference - log policy, [B, T], and name it in `Estimator`, the choices
of the config, and in `ESTIMATORS`.
"""

from __future__ import annotations

from typing import Literal

import torch

Estimator = Literal["k1", "k2", "k3"]

LOG_BOUND = 20.0
"""|log ref - log new| is cut here, so that k3 cannot overflow."""


def k1(d: torch.Tensor) -> torch.Tensor:
    """Return -d: unbiased, either sign; as a loss its on-policy gradient is 0 on average."""
    return -d


def k2(d: torch.Tensor) -> torch.Tensor:
    """Return d^2 / 2: biased, but its on-policy gradient is the divergence's own."""
    return d.square() / 2


def k3(d: torch.Tensor) -> torch.Tensor:
    """Return exp(d) - d - 1: unbiased, never negative. Shao et al. 2024 (GRPO), arXiv 2402.03300, eq. 4."""
    return d.exp() - d - 1


ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}


def kl(
    estimator: Estimator, new: torch.Tensor, ref: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Estimate the divergence per token, [B, T]; 0 outside the mask."""
    d = torch.where(mask, ref - new, 0.0).clamp(-LOG_BOUND, LOG_BOUND)
    return ESTIMATORS[estimator](d)
