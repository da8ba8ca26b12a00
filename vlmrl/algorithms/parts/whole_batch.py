"""What an algorithm's `prepare` needs of the whole batch: every rank calls these with its own rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from vlmrl.algorithms.parts.aggregations import Aggregation
from vlmrl.schema import MicroBatch, TrainBatch
from vlmrl.system import distributed


def change(
    batches: Sequence[TrainBatch], make: Callable[[MicroBatch], MicroBatch]
) -> list[TrainBatch]:
    """Return the batches with each micro-batch replaced by what is made of it."""
    return [replace(batch, micro=tuple(map(make, batch.micro))) for batch in batches]


def gather(
    batches: Sequence[TrainBatch], read: Callable[[MicroBatch], torch.Tensor]
) -> torch.Tensor:
    """Return the numbers [B, T] read from all micro-batches of all ranks at their loss tokens, [N]."""
    counted = batches if distributed.speaks_for_sequence() else []
    own = [read(m).expand(m.mask.shape)[m.mask] for batch in counted for m in batch.micro]
    whole = torch.cat(own) if own else torch.zeros(0)
    return torch.cat(distributed.gather(whole))


def whiten(batches: Sequence[TrainBatch]) -> list[TrainBatch]:
    """Return the batches with advantages of mean 0 and variance 1 over all loss tokens of all ranks.

    The variance is unbiased and 1e-8 is added to it, as in verl.
    """
    found = gather(batches, lambda m: m.advantages).double()
    mean, count = found.mean(), max(len(found) - 1, 1)
    scale = ((found - mean).square().sum() / count + 1e-8).rsqrt()

    def make(micro: MicroBatch) -> MicroBatch:
        values = (micro.advantages.double() - mean) * scale
        return replace(micro, advantages=values.float())

    return change(batches, make)


def own_denominators(
    batches: Sequence[TrainBatch],
    aggregation: Aggregation,
    part: Callable[[MicroBatch], torch.Tensor],
) -> list[TrainBatch]:
    """Return the batches with row weights that make two losses of one: each part has its own mean.

    `part` says which rows, bool [B], are the second part. The aggregation divides by the tokens
    or completions of the batch; the weights make that those of the row's own part.
    """
    found = []
    for batch in batches:
        sizes = torch.zeros(2, dtype=torch.float64)
        for micro in batch.micro:
            size = micro.mask.sum(-1) if aggregation == "token" else torch.ones(len(micro.group))
            for which in (0, 1):
                sizes[which] += size[part(micro) == bool(which)].sum()
        sizes *= distributed.speaks_for_sequence()
        sizes = torch.stack(distributed.gather(sizes)).sum(0)
        factors = (sizes.sum() / sizes.clamp(min=1)).float()

        def make(micro: MicroBatch, factors: torch.Tensor = factors) -> MicroBatch:
            return replace(micro, weights=micro.weights * factors[part(micro).long()])

        found += change([batch], make)
    return found
