"""PAPO: GRPO that is rewarded for looking: its answers are to become unlikely where the media is hidden.

Source: Wang et al. 2025, "Perception-Aware Policy Optimization", arXiv 2507.06448, eq. 2, and its
code: each token's loss is less by k3, at most 10, between the policy and itself on a prompt with 60 % of
the patches black. As there by default, the log-probs of the hidden prompt are those before the update
and have no gradient; so of its double entropy loss, estimated by -log p of the sampled tokens, the half of
the hidden prompt has none either. The paper also has `kl: 0.01`, and its variant for DAPO is `clip_high:
0.28` with `double_entropy: 0.03`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from vlmrl.algorithms import losses as divergences
from vlmrl.algorithms.base import LossInputs, Pass
from vlmrl.algorithms.losses import Aggregation
from vlmrl.parts.algorithms.grpo import Grpo

LARGEST = 10.0
"""Bound of the divergence of a token."""


@dataclass(frozen=True, slots=True)
class Papo(Grpo):
    """GRPO with an implicit reward for perception. Example: Papo(perception=0.02, kl=0.01)."""

    metrics: ClassVar[Mapping[str, str]] = {
        "loss/perception": "Mean divergence from itself without most of the media, per loss token.",
    }

    own_passes: ClassVar[tuple[Pass, ...]] = ("masked_media",)

    aggregation: Aggregation = "token"
    perception: float = 0.01
    """Weight of the divergence from the policy that sees 40 % of its media."""
    double_entropy: float = 0.0
    """Weight of -log p of each token, which keeps a large `perception` from collapsing (0.03 there)."""

    def policy_loss(self, inputs: LossInputs) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return GRPO's loss less what the media tells, [B, T]."""
        losses, metrics = Grpo.policy_loss(self, inputs)
        gain = divergences.kl("k3", inputs.new, inputs.extra["masked_media"], inputs.mask)
        gain = gain.clamp(max=LARGEST)
        losses = losses - self.perception * gain
        if self.double_entropy:
            losses = losses - self.double_entropy * torch.where(inputs.mask, inputs.new, 0.0)
        return losses, {**metrics, "loss/perception": gain}
