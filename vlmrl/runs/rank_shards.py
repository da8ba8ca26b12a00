"""Each rank's share of a batch: which prompts it generates for, and how the shares are joined.

Every rank knows the whole batch, so that all decide alike, but a prompt's media are in the memory
of one rank only, its `home`, which generates for it, scores it and trains on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vlmrl.engines.base import Engine, Sampling
from vlmrl.runs.rollout_rows import Row
from vlmrl.schema import Completion, Prompt, PromptBatch, Rollouts
from vlmrl.system import distributed
from vlmrl.system.seeds import seed_of

__all__ = ["generate", "is_here"]


def is_here(prompt: Prompt) -> bool:
    """Return whether this rank is the prompt's home."""
    return prompt.home == distributed.rank()


def generate(engine: Engine, batch: PromptBatch, sampling: Sampling) -> Rollouts:
    """Generate completions of the whole batch; each rank's engine writes those of its own prompts.

    Each rank has a seed of its own, so a draw depends on the number of ranks, unless the engine's
    depend on the prompt alone. Of completions that are not at home only what all ranks need travels.
    """
    if distributed.world() == 1:
        return engine.generate(batch, sampling)
    distributed.barrier()  # servers that the ranks share have one temperature at a time
    mine = [p for p, prompt in enumerate(batch.prompts) if is_here(prompt)]
    seed = sampling.seed if engine.keyed else seed_of(sampling.seed, distributed.rank())
    part = engine.generate(batch.part(mine), replace(sampling, seed=seed))
    home = dict(zip(mine, part.completions, strict=True))
    written: dict[int, tuple[Completion, ...]] = {}
    for share in distributed.gather({p: tuple(map(_bare, group)) for p, group in home.items()}):
        written |= share
    written |= home
    return replace(part, batch=batch, completions=tuple(written[p] for p in range(len(batch))))


def _bare(completion: Completion) -> Completion:
    """Return the completion without what it was shown, which only its home trains on and writes."""
    segments = tuple(replace(segment, media=()) for segment in completion.segments)
    return replace(completion, segments=segments, suffix=None)


def gather_rows(rollouts: Rollouts, rows: Sequence[Row]) -> list[Row]:
    """Return the rows of all prompts, each as its home wrote it, with its media."""
    if distributed.world() == 1:
        return list(rows)
    pairs = enumerate(zip(rollouts.batch.prompts, rows, strict=True))
    found: dict[int, Row] = {}
    for share in distributed.gather({p: row for p, (prompt, row) in pairs if is_here(prompt)}):
        found |= share
    return [found[p] for p in range(len(rows))]
