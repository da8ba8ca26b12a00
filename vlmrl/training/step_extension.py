"""The seam of the training step: what a paper or a control adds around the scoring of a batch.

`Trainer.step` is plain GRPO. Whatever asks for further completions, changes what verifiers see, or
changes rewards is a `StepExtension`. `assemble` builds those of a config in the order in which they act.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlmrl.schema import Rewards, Rollouts
from vlmrl.system.seeds import seed_of

__all__ = ["StepExtension"]


@dataclass(frozen=True, slots=True)
class Draw:
    """One batch of a step; dynamic sampling may draw several."""

    run_seed: int
    step: int
    """Steps finished before this one."""
    number: int
    """Batches that this step has already drawn."""
    progress: float
    """Share of training done, in [0, 1)."""

    def seed(self, purpose: int) -> int:
        """Return the seed of this draw for a purpose; each purpose has a number of its own.

        Taken: 10 update, 11 rollouts (`RolloutQueue`), 12 shuffled rewards, 13 shuffled frames, 14 rows
        that replace bad ones, 15 masked media,
        16 choices of samplers.
        """
        return seed_of(self.run_seed, purpose, self.step, self.number)


class StepExtension:
    """A part of the step beside GRPO itself; a subclass overrides what it needs.

    Both hooks are called for every batch that a step draws, with the same `draw`, on every rank.
    """

    def extend_rollouts(self, rollouts: Rollouts, draw: Draw) -> Rollouts:
        """Return the rollouts to score: with more completions, or with more in a sample's `meta`."""
        return rollouts

    def extend_scored(
        self, rollouts: Rollouts, rewards: Rewards, draw: Draw
    ) -> tuple[Rollouts, Rewards]:
        """Return the scored rollouts from which groups are selected and advantages computed."""
        return rollouts, rewards

    def metrics(self, rollouts: Rollouts, rewards: Rewards) -> dict[str, float]:
        """Return what the extension adds to the step's line of metrics.jsonl."""
        return {}
