"""80/20: DAPO on the tokens at which the policy is least sure, and on no others.

Source: Wang et al. 2025, "Beyond the 80/20 Rule", arXiv 2506.01939, eq. 5 and 6. The quantile is that of
all tokens that the step trains on, over all ranks, by the policy before its update; the denominators
count all tokens, as there and in TRL, so a step is about `share` as long as DAPO's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from vlmrl.algorithms import advantages
from vlmrl.algorithms.base import Pass
from vlmrl.parts.algorithms.dapo import Dapo
from vlmrl.schema import MicroBatch, TrainBatch


@dataclass(frozen=True, slots=True)
class HighEntropy(Dapo):
    """DAPO on the tokens of highest entropy. Example: HighEntropy(share=0.2)."""

    own_passes: ClassVar[tuple[Pass, ...]] = ("entropy",)

    share: float = 0.2
    """Share of the tokens that are trained on."""

    def __post_init__(self) -> None:
        Dapo.__post_init__(self)
        if not 0 < self.share <= 1:
            raise ValueError(f"expected share in (0, 1], got {self.share}")

    def prepare(self, batches: Sequence[TrainBatch], progress: float = 0.0) -> Sequence[TrainBatch]:
        """Return the batches with the weight 1 for the tokens of highest entropy, else 0."""
        batches = Dapo.prepare(self, batches, progress)
        entropies = advantages.gather(batches, lambda micro: micro.extra["entropy"])
        if not len(entropies):
            return batches
        least = float(np.quantile(entropies.numpy(), 1 - self.share))

        def make(micro: MicroBatch) -> MicroBatch:
            weight = (micro.extra["entropy"] >= least).float()
            weight = weight * micro.extra.get("token_weight", 1.0)
            return replace(micro, extra={**micro.extra, "token_weight": weight})

        return advantages.change(batches, make)
