"""An algorithm that uses all that a row of the loss may know, and advantages that give it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from vlmrl.algorithms.base import LossInputs, Pass
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.schema import Advantages, Rollouts, TrainBatch
from vlmrl.system import distributed


@dataclass(frozen=True, slots=True)
class RowFacts(Grpo):
    """Trains on tokens of more entropy than the mean of the whole batch, all else in its loss, too."""

    @property
    def passes(self) -> tuple[Pass, ...]:
        return ("entropy", "masked_media")

    def prepare(self, batches: Sequence[TrainBatch], progress: float = 0.0) -> Sequence[TrainBatch]:
        own = [m.extra["entropy"][m.mask] for batch in batches for m in batch.micro]
        sums = distributed.gather([(float(e.double().sum()), len(e)) for e in own])
        flat = [pair for of_rank in sums for pair in of_rank]
        mean = sum(s for s, _ in flat) / sum(n for _, n in flat)
        return [
            replace(
                batch,
                micro=tuple(
                    replace(
                        m, extra={**m.extra, "token_weight": (m.extra["entropy"] > mean).float()}
                    )
                    for m in batch.micro
                ),
            )
            for batch in batches
        ]

    def policy_loss(self, inputs: LossInputs) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        losses, metrics = Grpo.policy_loss(self, inputs)
        gap = inputs.new - inputs.extra["masked_media"]
        stored = torch.where(
            inputs.of_origin("rehearsal"), inputs.new - inputs.extra["stored_logprobs"], 0.0
        )
        known = inputs.extra["correct"] * inputs.extra["place"]
        return losses * (1 + known) + gap.square() + 0.01 * stored.square(), metrics


def facts_of(rollouts: Rollouts) -> tuple[Rollouts, Advantages]:
    """Return the rollouts, one completion of each group rehearsed, and advantages by token."""
    groups = tuple(
        (replace(group[0], origin="rehearsal"), *group[1:]) for group in rollouts.completions
    )
    shape = len(groups), len(groups[0])
    longest = max(len(c.token_ids) for group in groups for c in group)
    noise = torch.Generator().manual_seed(5)
    return replace(rollouts, completions=groups), Advantages(
        values=torch.randn(*shape, longest, generator=noise),
        kept=torch.ones(shape, dtype=torch.bool),
        weights=torch.rand(shape, generator=noise),
        extra={
            "correct": torch.rand(shape, generator=noise),
            "place": torch.arange(longest).expand(*shape, -1) / longest,
        },
    )
