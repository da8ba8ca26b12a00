"""Each rank's share of a batch: which prompts it generates for, and how the shares are joined.

Every rank knows the whole batch, so that all decide alike, but a prompt's media are in the memory
of one rank only, its `home`, which generates for it, scores it and trains on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from vlmrl.engines.base import Engine, Sampling
from vlmrl.runs.rollout_rows import Row
from vlmrl.schema import Completion, Prompt, PromptBatch, Rollouts
from vlmrl.system import distributed
from vlmrl.system.seeds import seed_of

__all__ = ["gather_groups", "gather_rows", "generate", "is_here", "numbers_here", "own_draws"]


def is_here(prompt: Prompt) -> bool:
    """Return whether this rank is the prompt's home."""
    return prompt.home == distributed.rank()


def numbers_here(batch: PromptBatch) -> list[int]:
    """Return the numbers of the prompts whose home is this rank."""
    return [number for number, prompt in enumerate(batch.prompts) if is_here(prompt)]


def own_draws(engine: Engine, sampling: Sampling, numbers: Sequence[int]) -> Sampling:
    """Return the sampling with which this rank's engine draws for the prompts of these numbers.

    Where the engine can draw a prompt as one rank would in the whole batch, it does; else each rank
    has a seed of its own, and a draw depends on the number of ranks.
    """
    if distributed.world() == 1 or engine.keyed:
        return sampling
    if engine.placed:
        return sampling.at(numbers)
    return replace(sampling, seed=seed_of(sampling.seed, distributed.rank()))


def generate(engine: Engine, batch: PromptBatch, sampling: Sampling) -> Rollouts:
    """Generate completions of the whole batch; each rank's engine writes those of its own prompts."""
    if distributed.world() == 1:
        return engine.generate(batch, sampling)
    distributed.barrier()  # servers that the ranks share have one temperature at a time
    mine = numbers_here(batch)
    part = engine.generate(batch.part(mine), own_draws(engine, sampling, mine))
    home = dict(zip(mine, part.completions, strict=True))
    return replace(part, batch=batch, completions=gather_groups(batch, home))


def gather_groups(
    batch: PromptBatch, home: Mapping[int, tuple[Completion, ...]]
) -> tuple[tuple[Completion, ...], ...]:
    """Return the groups of all prompts; `home` are those of this rank's own, by number.

    Of completions that are not at home only what all ranks need travels.
    """
    if distributed.world() == 1:
        return tuple(home[number] for number in range(len(batch)))
    written: dict[int, tuple[Completion, ...]] = {}
    told = {p: tuple(said.without_media() for said in group) for p, group in home.items()}
    for share in distributed.gather(told):
        written |= share
    written |= home
    return tuple(written[number] for number in range(len(batch)))


def gather_rows(rollouts: Rollouts, rows: Sequence[Row]) -> list[Row]:
    """Return the rows of all prompts, each as its home wrote it, with its media."""
    if distributed.world() == 1:
        return list(rows)
    pairs = enumerate(zip(rollouts.batch.prompts, rows, strict=True))
    found: dict[int, Row] = {}
    for share in distributed.gather({p: row for p, (prompt, row) in pairs if is_here(prompt)}):
        found |= share
    return [found[p] for p in range(len(rows))]
