"""GRPO by turns: a turn is credited with what came after it, against rollouts that came as far.

Source: Chen et al. 2025, "ERA", arXiv 2510.12693: one advantage for all tokens of a turn, of returns
that are discounted from turn to turn, as in Wang et al. 2025, "VAGEN", arXiv 2510.16907; clip and loss of
GRPO, arXiv 2402.03300. Differs: both estimate by GAE with a critic; here the baseline is the mean of the
group's returns at that turn, without deviation. Rollouts of one turn are as in Dr. GRPO's advantages.
With `scale: std`, `episode: 1` and `ends: matched` they are the weighted advantages of steps and episodes of
Lu et al. 2025, "UI-S1", arXiv 2509.11543, section 3.4, whose returns a wrong action cuts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from vlmrl.algorithms.advantages import advantages_by_turn, returns_by_turn, spread_over_tokens
from vlmrl.algorithms.recipes import Recipe
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.schema import Advantages, Completion, Rewards, Rollouts


@dataclass(frozen=True, slots=True)
class TurnGrpo(Grpo):
    """GRPO with an advantage for every turn. Example: TurnGrpo(gamma=0.99, refused=-0.5)."""

    reads_completions: ClassVar[bool] = True

    scale: Literal["std", "none"] = "none"
    """Divide the advantages of a turn by the deviation of its group's returns there, or not."""
    gamma: float = 1.0
    """What a reward of the next turn is worth now; ERA: 0.99, VAGEN: 0.9."""
    paid: float = 1.0
    """Weight of what an environment paid for a turn."""
    counted: float = 1.0
    """Weight with which the rollout's reward holds the sum of what its turns were paid (`world_return`: its
    weight over its scale); so much is taken from the last turn, on which the rest is paid. 0: no
    reward of the source looks at it."""
    episode: float = 0.0
    """Weight of the advantage of the whole rollout, which is added to that of its turns; UI-S1: 1."""
    ends: str = ""
    """Metric of an environment: a turn for which it is 0 is credited with its own reward alone, and gives
    nothing to those before it; empty: none."""
    refused: float = 0.0
    """Added for a turn with a refused call; ERA: -0.5."""

    def __post_init__(self) -> None:
        Grpo.__post_init__(self)
        if not 0 < self.gamma <= 1:
            raise ValueError(f"expected gamma in (0, 1], got {self.gamma}")

    def advantages(self, rewards: Rewards, rollouts: Rollouts, progress: float = 0.0) -> Advantages:
        """Return the advantage of its turn for every token, [P, G, T]; [P, G] where none has turns.

        Dynamic sampling looks at whole rollouts: it drops a group of equal rewards whatever its turns earned.
        """
        plain = Recipe.advantages(self, rewards, rollouts, progress)
        flat = [c for group in rollouts.completions for c in group]
        if not any(c.segments for c in flat):
            return plain
        values = torch.zeros(*rewards.total.shape, max(c.num_tokens for c in flat))
        for p, group in enumerate(rollouts.completions):
            returns = [
                self._returns(c, total)
                for c, total in zip(group, rewards.total[p].tolist(), strict=True)
            ]
            by_turn = advantages_by_turn(returns, plain.kept[p].tolist(), self.scale == "std")
            for g, completion in enumerate(group):
                row = spread_over_tokens(completion, by_turn[g])
                values[p, g, : len(row)] = torch.tensor(row) + self.episode * plain.values[p, g]
        return replace(plain, values=values)

    def _returns(self, completion: Completion, total: float) -> list[float]:
        """Return what a rollout earned from each of its turns on."""
        turns = completion.turns
        rest = total - self.counted * sum(turn.reward or 0.0 for turn in turns)
        refused = [any(call.outcome == "refused" for call in turn.calls) for turn in turns]
        paid = [
            self.paid * (turn.reward or 0.0) + self.refused * bad
            for turn, bad in zip(turns, refused, strict=True)
        ]
        ends = [bool(self.ends) and turn.metrics.get(self.ends) == 0 for turn in turns]
        return returns_by_turn(paid, rest, self.gamma, ends)
