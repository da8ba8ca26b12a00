"""Guide-GRPO: what was written with a hint is trained on as if there had been none.

Source: Nath et al. 2025, "Adaptive Guidance Accelerates Reinforcement Learning of Reasoning Models",
arXiv 2506.13923: the ratio of tokens of origin `hint` is their probability without the hint over the
one that they were sampled with. The strategy `hints` asks for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from vlmrl.algorithms.base import LossInputs
from vlmrl.parts.algorithms.grpo import Grpo


@dataclass(frozen=True, slots=True)
class GuideGrpo(Grpo):
    """GRPO with the true ratio of hinted completions, for the strategy `hints`. Example: GuideGrpo()."""

    def policy_loss(self, inputs: LossInputs) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return GRPO's loss per token [B, T], hinted tokens against the log-probs with their hint."""
        if "stored_logprobs" in inputs.extra:
            hinted = inputs.of_origin("hint")
            old = torch.where(hinted, inputs.extra["stored_logprobs"], inputs.old)
            sampling = torch.where(hinted, old, inputs.sampling)
            inputs = replace(inputs, old=old, sampling=sampling)
        return Grpo.policy_loss(self, inputs)
