"""Selective sample replay: completions that had an advantage are trained on again where fresh ones have none.

Source: Wang et al. 2025, "VL-Rethinker", arXiv 2504.08837, section 3.1, and its code (replay_buffer), and the
selective sample buffer of Skywork R1V2, arXiv 2504.16656: completions are drawn by |advantage|^alpha and
keep their advantage. The log-probs of then are kept, too, so that the algorithm's `correction` weighs them.
Differs: what is drawn is of earlier steps alone, and no completion comes twice in a step; fresh completions
all count once, there drawn by |advantage|, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch

from vlmrl.engines.completions import make_completions
from vlmrl.errors import UserError
from vlmrl.schema import Advantages, Completion, Prompt, PromptBatch, Rewards, Rollouts
from vlmrl.training.strategy import (
    NAMES,
    BatchDraw,
    RunParts,
    StoredGroup,
    Strategy,
    from_arrays,
    of_origin,
    store,
    to_arrays,
)

SEED_PURPOSE = 27
NUMBERS = ("values", "rewards", "weights")
"""Of each stored completion [C] float64: its advantage, its reward, and the weight of its row."""

Drawn = tuple[Prompt, tuple[Completion, ...], np.ndarray]
"""A prompt, its completions that were drawn, and their `NUMBERS` [3, n]."""


@dataclass(frozen=True)
class SampleReplay(Strategy):
    """Completions of earlier steps, by their advantage. Example: SampleReplay(share=0.5, alpha=1.0)."""

    curves: ClassVar[Mapping[str, str]] = {
        "sample_replay/stored": "Completions with an advantage that the buffer holds.",
        "sample_replay/share": "Share of the completions trained on that were drawn from the buffer.",
    }
    state_names: ClassVar[tuple[str, ...]] = (*NAMES, *NUMBERS)
    reads_completions: ClassVar[bool] = True

    share: float = 0.5
    """Share of a batch's completions that is trained on, at least; the buffer gives what fresh ones with an
    advantage lack."""
    alpha: float = 1.0
    """A completion is drawn with a chance in proportion to |advantage|^alpha; 0: all alike."""
    capacity: int = 2048
    """Completions that the buffer holds; the oldest groups go first."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"expected share in (0, 1], got {self.share}")
        if self.alpha < 0 or self.capacity < 1:
            raise ValueError(
                f"expected alpha from 0 and capacity from 1, got {self.alpha} and {self.capacity}"
            )

    def begin(self, run: RunParts) -> None:
        """Begin with nothing stored."""
        self.state.update({**to_arrays([]), **{name: np.zeros(0) for name in NUMBERS}})

    def select(
        self,
        rollouts: Rollouts,
        rewards: Rewards,
        advantages: Advantages,
        draw: BatchDraw,
        run: RunParts,
    ) -> tuple[Rollouts, Rewards, Advantages]:
        """Leave out what has no advantage, fill up from the buffer, and store what has one.

        Raises:
            UserError: the algorithm's advantages are more than one number a completion.
        """
        if advantages.values.dim() > 2 or advantages.extra:
            raise UserError(
                "strategy sample_replay: expected an algorithm with one advantage for each completion and "
                f"nothing else to know of it, got {type(run.config.algorithm).__name__} "
                f"{run.config.algorithm.name!r}"
            )
        kept = advantages.kept & (advantages.values != 0)
        now = run.config.at(draw.progress).rollout
        wanted = round(self.share * now.prompts * now.group_size) - int(kept.sum())
        drawn = self._drawn(max(0, wanted), draw, run)
        fresh = replace(advantages, kept=kept)
        self._take_in(rollouts, rewards, fresh)
        return _mixed(rollouts, rewards, fresh, drawn) if drawn else (rollouts, rewards, fresh)

    def metrics(self, rollouts: Rollouts, rewards: Rewards) -> dict[str, float]:
        """Return `sample_replay/stored`, completions, and `sample_replay/share`, of those of the step."""
        replayed = len(of_origin(rollouts, rewards, "replay"))
        share = replayed / max(1, int(rewards.valid.sum()))
        stored = float(len(self.state["values"])) if self.state else 0.0
        return {"sample_replay/stored": stored, "sample_replay/share": share}

    def _drawn(self, wanted: int, draw: BatchDraw, run: RunParts) -> list[Drawn]:
        """Return stored completions by group, the groups in the order in which they were stored."""
        count = min(wanted, len(self.state["values"]))
        if not count:
            return []
        chance = np.abs(self.state["values"]) ** self.alpha
        rng = np.random.default_rng(draw.seed(SEED_PURPOSE))
        chosen = np.sort(rng.choice(len(chance), count, replace=False, p=chance / chance.sum()))
        sizes = self.state["sizes"]
        group_of = np.repeat(np.arange(len(sizes)), sizes)[chosen]
        first = np.cumsum(sizes) - sizes
        numbers = np.stack([self.state[name] for name in NUMBERS])
        groups = np.unique(group_of)
        stored = from_arrays(self.state, groups.tolist())
        made = run.loader.recall([group.row for group in stored])
        replayed: list[Drawn] = []
        for number, group, prompt in zip(groups, stored, made, strict=True):
            if prompt is not None:  # its row has not become bad
                own = chosen[group_of == number]
                sampled = [group.completions[g] for g in own - first[number]]
                (completions,) = make_completions(run.policy, [prompt], [sampled])
                marked = tuple(c.with_origin("replay") for c in completions)
                replayed.append((prompt, marked, numbers[:, own]))
        return replayed

    def _take_in(self, rollouts: Rollouts, rewards: Rewards, advantages: Advantages) -> None:
        """Store the completions of the policy that are kept; forget the oldest groups for them."""
        sizes = self.state["sizes"]
        groups: list[StoredGroup] = []
        numbers: list[torch.Tensor] = []
        tables = torch.stack([advantages.values, rewards.total, advantages.weights]).double()
        for p, (prompt, group) in enumerate(
            zip(rollouts.batch.prompts, rollouts.completions, strict=True)
        ):
            own = [c.origin == "policy" for c in group]
            chosen = (advantages.kept[p] & torch.tensor(own)).nonzero()[:, 0].tolist()
            if chosen and prompt.place is not None:
                groups.append(store(prompt, [group[g] for g in chosen]))
                numbers.append(tables[:, p, chosen])
        new = sum(len(group.completions) for group in groups)
        left = sizes[::-1].cumsum()[::-1] + new  # completions from each stored group on
        old = [number for number in range(len(sizes)) if left[number] <= self.capacity]
        while groups and sum(len(group.completions) for group in groups) > self.capacity:
            groups, numbers = groups[1:], numbers[1:]
        gone = int(sizes.sum() - sizes[old].sum())
        self.state.update(to_arrays([*from_arrays(self.state, old), *groups]))
        for row, name in enumerate(NUMBERS):
            fresh = [table[row].numpy() for table in numbers]
            self.state[name] = np.concatenate([self.state[name][gone:], *fresh])


def _mixed(
    rollouts: Rollouts, rewards: Rewards, advantages: Advantages, drawn: Sequence[Drawn]
) -> tuple[Rollouts, Rewards, Advantages]:
    """Return the step's groups with those drawn evenly among them.

    A group that is drawn has G places; what fills the last of them is neither valid nor kept.
    """
    fresh, size = rollouts.shape
    groups, kept = [], torch.zeros(len(drawn), size, dtype=torch.bool)
    tables = torch.zeros(len(NUMBERS), len(drawn), size)
    for q, (_, completions, numbers) in enumerate(drawn):
        count = min(size, len(completions))
        columns = np.resize(np.arange(count), size)
        groups.append(tuple(completions[g] for g in columns))
        kept[q, :count] = True
        tables[:, q] = torch.from_numpy(numbers[:, columns])
    values, total, weights = tables * kept
    places = [(n + 0.5) / count for count in (fresh, len(drawn)) for n in range(count)]
    order = np.argsort(places, kind="stable").tolist()
    prompts = (*rollouts.batch.prompts, *(prompt for prompt, _, _ in drawn))
    every = (*rollouts.completions, *groups)
    verdicts = (*rewards.verdicts, *(({},) * size for _ in drawn))
    return (
        replace(
            rollouts,
            batch=PromptBatch(tuple(prompts[n] for n in order), rollouts.batch.cursor),
            completions=tuple(every[n] for n in order),
        ),
        Rewards(
            torch.cat([rewards.total, total])[order],
            torch.cat([rewards.valid, kept])[order],
            tuple(verdicts[n] for n in order),
        ),
        replace(
            advantages,
            values=torch.cat([advantages.values, values])[order],
            kept=torch.cat([advantages.kept, kept])[order],
            weights=torch.cat([advantages.weights, weights])[order],
        ),
    )
