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

    Each rank has a seed of its own, so a draw depends on the number of ranks.
    """
    if distributed.world() == 1:
        return engine.generate(batch, sampling)
    distributed.barrier()  # servers that the ranks share have one temperature at a time
    mine = [p for p, prompt in enumerate(batch.prompts) if is_here(prompt)]
    own = PromptBatch(tuple(batch.prompts[p] for p in mine), batch.cursor)
    seed = seed_of(sampling.seed, distributed.rank())
    part = engine.generate(own, replace(sampling, seed=seed))
    written: dict[int, tuple[Completion, ...]] = {}
    for share in distributed.gather(dict(zip(mine, part.completions, strict=True))):
        written |= share
    return replace(part, batch=batch, completions=tuple(written[p] for p in range(len(batch))))


def gather_rows(rollouts: Rollouts, rows: Sequence[Row]) -> list[Row]:
    """Return the rows of all prompts, each as its home wrote it, with its media."""
    if distributed.world() == 1:
        return list(rows)
    pairs = enumerate(zip(rollouts.batch.prompts, rows, strict=True))
    found: dict[int, Row] = {}
    for share in distributed.gather({p: row for p, (prompt, row) in pairs if is_here(prompt)}):
        found |= share
    return [found[p] for p in range(len(rows))]
