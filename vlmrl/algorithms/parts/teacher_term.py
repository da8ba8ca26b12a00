"""A teacher beside the rewards: the divergence of the policy from it, token by token.

Source: Agarwal et al. 2024 (GKD), arXiv 2306.13649, eq. 5: rewards and the divergence from a teacher on what
the policy samples are one objective. On policy the two forms here have the same gradient, that of the reverse
divergence KL(policy || teacher) at each token without what follows it. In the loss it is half the squared
log ratio (k2): Xu et al. 2025 (KDRL), arXiv 2506.02208, who found it better than k3 and than a part of
the reward. In the advantage it is log teacher - log policy: Lu et al. 2025, "On-Policy Distillation"
(thinkingmachines.ai), and Xiaomi 2026 (MiMo-V2-Flash), who add it to the advantage of the rewards; the
recipe's ratio, clip and correction then hold it, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from vlmrl.algorithms.base import LossInputs
from vlmrl.algorithms.parts import whole_batch
from vlmrl.schema import ORIGINS, MicroBatch, TrainBatch

LOG_BOUND = 20.0
"""From this log ratio on the penalty grows linearly, so that one token cannot make up a gradient."""


def gap(inputs: LossInputs) -> torch.Tensor:
    """Return log policy - log teacher per token, [B, T]; 0 outside the mask and where others wrote."""
    own = inputs.mask & inputs.of_origin("policy")
    return torch.where(own, inputs.new - inputs.extra["teacher"], 0.0)


def penalty(inputs: LossInputs) -> torch.Tensor:
    """Return half the squared log ratio of policy and teacher per token, [B, T], without its weight."""
    found = gap(inputs)
    bounded = found.clamp(-LOG_BOUND, LOG_BOUND)
    # Past the bound it is the tangent: its gradient is the bound, and not 0 as that of a clamp.
    return bounded.square() / 2 + bounded.detach() * (found - bounded)


def reward(batches: Sequence[TrainBatch], weight: float) -> list[TrainBatch]:
    """Return the batches with `weight` times log teacher - log policy added to each advantage, [B, T].

    The old and the teacher's log-probs must be filled in.
    """

    def make(micro: MicroBatch) -> MicroBatch:
        assert micro.old_logprobs is not None
        own = micro.mask
        if "origin" in micro.extra:
            own = own & (micro.extra["origin"] == ORIGINS.index("policy"))
        gain = torch.where(own, micro.extra["teacher"] - micro.old_logprobs, 0.0)
        return replace(micro, advantages=micro.advantages + weight * gain)

    return whole_batch.change(batches, make)
