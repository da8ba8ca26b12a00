"""VPPO: DAPO on the tokens that the image changes most, and more for completions that it changes more.

Source: Huang et al. 2025, "Spotlight on Token Perception for Multimodal RL", arXiv 2510.09285, eq. 5 to 8,
and its code (dp_actor): a token depends on the image by k3, at most 10, between the policy before the
update and itself on a prompt with most of its patches black; the `share` of a completion's tokens that
depend most are trained on, the denominators count all. The mean of a completion, from the lowest to
the highest of the update, becomes a factor of its advantage, from `least_factor` up, whose mean is 1; as
in its code -log p of every token is a part of the loss. Differs: that mean is over the update, there over
the micro-batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from vlmrl.algorithms import advantages
from vlmrl.algorithms import losses as divergences
from vlmrl.algorithms.base import Pass
from vlmrl.parts.algorithms.dapo import Dapo
from vlmrl.schema import MicroBatch, TrainBatch
from vlmrl.system import distributed

LARGEST = 10.0
"""Bound of the dependence of a token."""
SPREAD = 1e-6
"""Completions whose dependence differs by less count alike."""


@dataclass(frozen=True, slots=True)
class Vppo(Dapo):
    """DAPO where the image matters. Example: Vppo(share=0.4, least_factor=0.9, entropy_penalty=0.06)."""

    of_wholes: ClassVar[bool] = True
    own_passes: ClassVar[tuple[Pass, ...]] = ("old", "masked_media")

    overlong_share: float = 0.0
    share: float = 0.4
    """Share of a completion's tokens that are trained on."""
    least_factor: float = 0.9
    """Factor of the advantage of the completion that depends least on the image."""
    entropy_penalty: float = 0.06
    """Weight of -log p of the tokens, which keeps the entropy from growing."""

    def __post_init__(self) -> None:
        Dapo.__post_init__(self)
        if not 0 < self.share <= 1:
            raise ValueError(f"expected share in (0, 1], got {self.share}")
        if not 0 <= self.least_factor <= 1:
            raise ValueError(f"expected least_factor in [0, 1], got {self.least_factor}")
        if self.entropy_penalty < 0:
            raise ValueError(f"expected entropy_penalty of at least 0, got {self.entropy_penalty}")

    def prepare(self, batches: Sequence[TrainBatch], progress: float = 0.0) -> Sequence[TrainBatch]:
        """Return the batches with token weights of 1 and 0, and with factors in the advantages."""
        return [self._look(batch) for batch in Dapo.prepare(self, batches, progress)]

    def _look(self, batch: TrainBatch) -> TrainBatch:
        own = [dependence(micro)[1][micro.mask.any(-1)] for micro in batch.micro]
        scores = (
            torch.cat([torch.zeros(0), *own])
            if distributed.speaks_for_sequence()
            else torch.zeros(0)
        )
        scores = torch.cat(distributed.gather(scores))
        lowest, highest = (scores.min(), scores.max()) if len(scores) else torch.zeros(2)
        width = highest - lowest
        mean = ((scores - lowest) / width).mean()
        slope = (1 - self.least_factor) / (mean + 1e-8)

        def make(micro: MicroBatch) -> MicroBatch:
            of_tokens, of_rows = dependence(micro)
            weight = most(of_tokens.masked_fill(~micro.mask, -torch.inf), micro.mask, self.share)
            weight = weight * micro.extra.get("token_weight", 1.0)
            extra = {**micro.extra, "token_weight": weight}
            if self.entropy_penalty:
                extra["imitate"] = torch.full_like(weight, self.entropy_penalty)
            if not width > SPREAD:
                return replace(micro, extra=extra)
            factor = self.least_factor + slope * (of_rows - lowest) / width
            return replace(micro, extra=extra, advantages=micro.advantages * factor[:, None])

        return advantages.change([batch], make)[0]


def dependence(micro: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return how much each token depends on the media, [B, T], and the mean of each completion, [B]."""
    assert micro.old_logprobs is not None
    gain = divergences.kl("k3", micro.old_logprobs, micro.extra["masked_media"], micro.mask)
    gain = gain.clamp(max=LARGEST)
    return gain, (gain * micro.mask).sum(-1) / micro.mask.sum(-1).clamp(min=1)


def most(values: torch.Tensor, mask: torch.Tensor, share: float) -> torch.Tensor:
    """Return 1.0 for the largest `share` of each row's values in the mask, rounded up, else 0, [B, T]."""
    counts = torch.tensor([math.ceil(n * share) for n in mask.sum(-1).tolist()])
    order = values.argsort(dim=-1, descending=True, stable=True)
    ranks = order.argsort(dim=-1)
    return ((ranks < counts[:, None]) & mask).float()
