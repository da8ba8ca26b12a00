"""Each rank's share of a batch: which prompts it generates for, and how the shares are joined.

A prompt's media and its completions are in the memory of one rank only, its `home`, which generates
for it, scores it and trains on it. So that all ranks decide alike, each knows the numbers of every
completion: its length, finish reason, versions and origin (`RemoteCompletion`).
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import ChainMap, Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import get_args

import numpy as np

from vlmrl.engines.base import RunningEngine, Sampling
from vlmrl.runs.rollout_rows import Row
from vlmrl.schema import (
    ORIGINS,
    Completion,
    FinishReason,
    Prompt,
    PromptBatch,
    RemoteCompletion,
    Rollouts,
)
from vlmrl.system import distributed
from vlmrl.system.seeds import seed_of

Group = tuple[Completion, ...]

REASONS: tuple[FinishReason, ...] = get_args(FinishReason)


def is_here(prompt: Prompt) -> bool:
    """Return whether this rank is the prompt's home; a process alone is that of all."""
    return distributed.world() == 1 or prompt.home == distributed.rank()


def numbers_here(batch: PromptBatch) -> list[int]:
    """Return the numbers of the prompts whose home is this rank."""
    return [number for number, prompt in enumerate(batch.prompts) if is_here(prompt)]


def own_draws(engine: RunningEngine, sampling: Sampling, numbers: Sequence[int]) -> Sampling:
    """Return the sampling with which this rank's engine draws for the prompts of these numbers.

    Where the engine can draw a prompt as one rank would in the whole batch, it does; else each rank
    has a seed of its own, and a draw depends on the number of ranks.
    """
    if distributed.world() == 1 or engine.capabilities.keyed:
        return sampling
    if engine.capabilities.placed:
        return sampling.at(numbers)
    return replace(sampling, seed=seed_of(sampling.seed, distributed.rank()))


def generate(
    engine: RunningEngine, batch: PromptBatch, sampling: Sampling, whole: bool = False
) -> Rollouts:
    """Generate completions of the whole batch; each rank's engine writes those of its own prompts.

    `whole` as in `gather_groups`.
    """
    if distributed.world() == 1:
        return engine.generate(batch, sampling)
    distributed.barrier()  # servers that the ranks share have one temperature at a time
    mine = numbers_here(batch)
    part = engine.generate(batch.part(mine), own_draws(engine, sampling, mine))
    home = dict(zip(mine, part.completions, strict=True))
    return replace(part, batch=batch, completions=gather_groups(batch, home, whole))


def gather_groups(
    batch: PromptBatch, home: Mapping[int, tuple[Completion, ...]], whole: bool = False
) -> tuple[tuple[Completion, ...], ...]:
    """Return the groups of all prompts; `home` are those of this rank's own, by number.

    Of the others only numbers travel, about 20 bytes a completion. With `whole` all that was written
    does, without what tools showed: for parts that read it (`reads_completions`).
    """
    if distributed.world() == 1:
        return tuple(home[number] for number in range(len(batch)))
    if not whole:
        return _gather_numbers(batch, home)
    own = {p: tuple(c.without_media() for c in group) for p, group in home.items()}
    written = ChainMap({**home}, *distributed.gather(own))
    return tuple(written[number] for number in range(len(batch)))


def gather_rows(rollouts: Rollouts, own: Sequence[Row]) -> list[Row]:
    """Return on the main rank the rows of all prompts; `own` are those of this rank's own, in order."""
    if distributed.world() == 1:
        return list(own)
    shares = [iter(share) for share in distributed.gather_to_main(list(own))]
    return [next(shares[p.home]) for p in rollouts.batch.prompts] if shares else []


def _gather_numbers(
    batch: PromptBatch, home: Mapping[int, tuple[Completion, ...]]
) -> tuple[tuple[Completion, ...], ...]:
    """Return this rank's own groups, and in the places of the others `RemoteCompletion`s."""
    own = [home[number] for number in numbers_here(batch)]
    all_ = [c for group in own for c in group]
    arrays: list[np.ndarray] = [
        np.array([len(group) for group in own], np.int32),
        np.array([c.num_tokens for c in all_], np.int32),
        np.array([REASONS.index(c.finish_reason) for c in all_], np.uint8),
        np.array([ORIGINS.index(c.origin) for c in all_], np.uint8),
        np.array([len(c.versions) for c in all_], np.int32),
        np.array([n for c in all_ for run in c.versions for n in run], np.int32),
    ]
    groups = [
        _stand_ins(r, *of_rank) for r, of_rank in enumerate(distributed.gather_arrays(arrays))
    ]
    groups[distributed.rank()] = iter(own)
    return tuple(next(groups[prompt.home]) for prompt in batch.prompts)


def _stand_ins(home: int, sizes: np.ndarray, *columns: np.ndarray) -> Iterator[Group]:
    """Yield stand-ins for the groups of a rank, made from its numbers (`_gather_numbers`)."""
    *of_each, runs, versions = columns
    pairs = [(int(version), int(count)) for version, count in versions.reshape(-1, 2)]
    begins = np.cumsum(runs) - runs
    numbers = zip(*(column.tolist() for column in (*of_each, begins, runs)), strict=True)
    for size in sizes.tolist():
        yield tuple(
            RemoteCompletion(
                home, length, REASONS[reason], tuple(pairs[begin : begin + run]), ORIGINS[origin]
            )
            for length, reason, origin, begin, run in itertools.islice(numbers, size)
        )


def average(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the means over all ranks' values, to the bit those of one rank that has them all.

    All ranks call it; a name that a rank has no value of may be missing there.
    """
    if distributed.world() == 1:
        return {key: statistics.fmean(v) for key, v in values.items()}
    counts: Counter[str] = Counter()
    sums: dict[str, list[float]] = defaultdict(list)
    for share in distributed.gather({key: (len(v), exact_sum(v)) for key, v in values.items()}):
        for key, (count, parts) in share.items():
            counts[key] += count
            sums[key] += parts
    return {key: math.fsum(parts) / counts[key] for key, parts in sums.items()}


def exact_sum(values: Sequence[float]) -> list[float]:
    """Return a few numbers whose sum is that of the values without any rounding."""
    parts: list[float] = []
    while rest := math.fsum([*values, *(-part for part in parts)]):
        parts.append(rest)
        if not math.isfinite(rest):
            break
    return parts
