"""A divergence that is a part of the reward, token by token, and not of the loss.

Source: Ouyang et al. 2022 (InstructGPT), arXiv 2203.02155, eq. 2, as in OpenRLHF and verl: every
token is rewarded -kl * (log policy - log reference), the estimator k1, and its advantage is the
completion's less what the rest of the completion costs. As a loss k1 would have no gradient on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from vlmrl.algorithms.parts import whole_batch
from vlmrl.schema import MicroBatch, TrainBatch


def charge(batches: Sequence[TrainBatch], kl: float) -> list[TrainBatch]:
    """Return the batches with `kl` times the divergence of the rest of the completion off each advantage.

    Old and reference log-probs must be filled in; advantages become [B, T].
    """

    def make(micro: MicroBatch) -> MicroBatch:
        assert micro.old_logprobs is not None and micro.ref_logprobs is not None
        gap = torch.where(micro.mask, micro.old_logprobs - micro.ref_logprobs, 0.0)
        rest = gap.flip(-1).cumsum(-1).flip(-1)
        return replace(micro, advantages=micro.advantages - kl * rest)

    return whole_batch.change(batches, make)
