"""The sum of the gradients over all ranks, where every rank has whole weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist

from vlmrl.system import distributed

BUCKET = 2**24
"""Numbers that are summed over the ranks at a time."""


def sum_gradients(parameters: Sequence[torch.nn.Parameter]) -> None:
    """Replace every `grad` with its sum over the ranks; None stays where no rank has one.

    Once per update and not in torch's DistributedDataParallel, which sums in every backward, takes
    the mean, and wants the same number of forwards, all through one module: here ranks have
    different numbers of micro-batches, and the shares of a loss add up.
    """
    if distributed.world() == 1:
        return
    present = torch.tensor([p.grad is not None for p in parameters], dtype=torch.int32)
    present = present.to(parameters[0].device)
    dist.all_reduce(present, dist.ReduceOp.MAX)
    used = [p for p, has in zip(parameters, present.tolist(), strict=True) if has]
    for bucket in _buckets(used):
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in bucket]
        flat = torch.cat([g.flatten() for g in gradients])
        dist.all_reduce(flat)
        parts = flat.split([p.numel() for p in bucket])
        for parameter, part in zip(bucket, parts, strict=True):
            parameter.grad = part.view_as(parameter).clone()


def sum_bytes(parameters: Sequence[torch.nn.Parameter]) -> int:
    """Return the bytes that `sum_gradients` makes at a time: a bucket, and its parts."""
    sizes = [sum(p.nbytes for p in bucket) for bucket in _buckets(parameters)]
    return 2 * max(sizes, default=0)


def _buckets(parameters: Sequence[torch.nn.Parameter]) -> Iterator[list[torch.nn.Parameter]]:
    """Neighbours of one type, together up to `BUCKET` numbers unless one alone has more."""
    current: list[torch.nn.Parameter] = []
    size = 0
    for p in parameters:
        if current and (size + p.numel() > BUCKET or p.dtype != current[0].dtype):
            yield current
            current, size = [], 0
        current.append(p)
        size += p.numel()
    if current:
        yield current
