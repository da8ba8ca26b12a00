"""A divergence that is a part of the reward, token by token, and not of the loss.

Source: Ouyang et al. 2022 (InstructGPT), arXiv 2203.02155, eq. 2, as in OpenRLHF and verl: every
token is rewarded -kl * (log policy - log reference), the estimator k1, and its advantage is the
completion's less what the rest of the completion costs. As a loss k1 would have no gradient on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from vlmrl.algorithms.base import LossInputs, LossOutput, Pass
from vlmrl.algorithms.grpo import Grpo
from vlmrl.algorithms.parts import whole_batch
from vlmrl.schema import MicroBatch, TrainBatch


@dataclass(frozen=True, slots=True)
class KlInReward(Grpo):
    """GRPO whose `kl` is taken from the reward of each token. Example: KlInReward(kl=0.01)."""

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Return what the reward of a token is made of."""
        return ("old", "reference") if self.kl else ()

    def prepare(self, batches: Sequence[TrainBatch], progress: float = 0.0) -> Sequence[TrainBatch]:
        """Return the batches with the divergence of the rest of the completion in each advantage, [B, T]."""
        if not self.kl:
            return batches

        def make(micro: MicroBatch) -> MicroBatch:
            assert micro.old_logprobs is not None and micro.ref_logprobs is not None
            gap = torch.where(micro.mask, micro.old_logprobs - micro.ref_logprobs, 0.0)
            rest = gap.flip(-1).cumsum(-1).flip(-1)
            return replace(micro, advantages=micro.advantages - self.kl * rest)

        return whole_batch.change(batches, make)

    def loss(self, inputs: LossInputs) -> LossOutput:
        """Return the micro-batch's share of the policy loss alone; `loss/kl` is reported."""
        out = Grpo.loss(replace(self, kl=0.0), inputs)
        if inputs.ref is None:
            return out
        gap = torch.where(inputs.mask, inputs.new.detach() - inputs.ref, 0.0).sum()
        return LossOutput(out.loss, {**out.metrics, "loss/kl": gap})
