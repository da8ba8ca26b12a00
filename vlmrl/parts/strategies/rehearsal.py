"""DPH-RL's rehearsal: rows that the model can do as RL begins keep the answers that it then gave.

Source: Li et al. 2025, "The Choice of Divergence", arXiv 2509.07430, section 4: a pass over the rows
before RL finds those that are near-perfect; their groups are what was sampled then, of origin
`rehearsal`, which algorithm `dph` holds the policy to by an f-divergence and no reward. All samples of
such a row are kept, right or wrong: the divergence is a mean under that model.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from vlmrl.engines.completions import make_completions
from vlmrl.schema import Prompt, PromptBatch, Rewards, Rollouts
from vlmrl.training.strategy import (
    NAMES,
    BatchDraw,
    RunParts,
    StoredGroup,
    Strategy,
    from_arrays,
    of_origin,
    put_in,
    store,
    to_arrays,
)

SEED_PURPOSE = 19
SAY_EVERY_S = 20.0
"""Seconds between two lines on how far the rows are tried."""


@dataclass(frozen=True)
class Rehearsal(Strategy):
    """Answers of the model as RL began, for rows that it could do. Example: Rehearsal(rows=1000)."""

    curves: ClassVar[Mapping[str, str]] = {
        "rehearsal/rows": "Rows that the model could do as RL began, whose answers are rehearsed.",
        "rehearsal/share": "Share of groups that were rehearsed answers.",
    }
    state_names: ClassVar[tuple[str, ...]] = NAMES
    reads_completions: ClassVar[bool] = True

    rows: int | None = None
    """Training rows that are tried before the first step, spread evenly over all. None: all."""
    samples: int = 8
    """Completions for each of them."""
    correct_above: float = 0.5
    """A completion is right if its reward exceeds this."""
    near_perfect: float = 1.0
    """Share of right completions from which a row is rehearsed."""

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError(f"expected samples of at least 1, got {self.samples}")
        if self.rows is not None and self.rows < 1:
            raise ValueError(f"expected rows of at least 1, got {self.rows}")
        if not 0 < self.near_perfect <= 1:
            raise ValueError(f"expected near_perfect in (0, 1], got {self.near_perfect}")

    def begin(self, run: RunParts) -> None:
        """Try the rows, and keep the completions of those that are near-perfect."""
        sources = enumerate(run.loader.sources)
        every = [(number, row) for number, source in sources for row in range(len(source.rows))]
        tried = min(self.rows or len(every), len(every))
        places = [every[number * len(every) // tried] for number in range(tried)]
        size = run.config.at(0.0).rollout.prompts
        kept: list[StoredGroup] = []
        begun = last_report = time.monotonic()
        run.say(f"rehearsal: {len(places)} rows are tried before the first step")
        for number, first in enumerate(range(0, len(places), size)):
            made = run.loader.recall(places[first : first + size])
            prompts = [prompt for prompt in made if prompt is not None]
            draw = BatchDraw(run.config.run.seed, 0, number, 0.0)
            kept += self._tried(prompts, draw, run) if prompts else []
            done, now = min(first + size, len(places)), time.monotonic()
            if done == len(places) or now - last_report >= SAY_EVERY_S:
                left_s, last_report = (now - begun) / done * (len(places) - done), now
                left = f"{left_s:.0f} s" if left_s < 100 else f"{left_s / 60:.0f} min"
                rows = f"{done} of {len(places)} rows tried, {len(kept)} near-perfect"
                run.say(f"rehearsal: {rows}, {left} left")
        self.state.update(to_arrays(kept))

    def expand(
        self, rollouts: Rollouts, rewards: Rewards, draw: BatchDraw, run: RunParts
    ) -> tuple[Rollouts, Rewards]:
        """Fill the groups of near-perfect rows with stored completions, repeated where those are few."""
        prompts = rollouts.batch.prompts
        numbers = {
            p: n for p, prompt in enumerate(prompts) if (n := self._number(prompt)) is not None
        }
        if not numbers:
            return rollouts, rewards
        stored = from_arrays(self.state, list(numbers.values()))
        rehearsed = [prompts[p] for p in numbers]
        order = np.random.default_rng(draw.seed(SEED_PURPOSE)).permutation(self.samples)
        chosen = np.resize(order, rollouts.shape[1]).tolist()
        written = [[group.completions[g] for g in chosen] for group in stored]
        groups = tuple(make_completions(run.policy, rehearsed, written))
        again = replace(rollouts, batch=PromptBatch(tuple(rehearsed)), completions=groups)
        judged = run.judge(again, [prompt.sample for prompt in rehearsed], draw)
        pairs = [list(zip(c, j, strict=True)) for c, j in zip(groups, judged, strict=True)]
        return put_in(rollouts, rewards, dict(zip(numbers, pairs, strict=True)), "rehearsal")

    def metrics(self, rollouts: Rollouts, rewards: Rewards) -> dict[str, float]:
        """Return `rehearsal/rows`, near-perfect rows, and `rehearsal/share`, of groups that are theirs."""
        rehearsed = {p for p, _ in of_origin(rollouts, rewards, "rehearsal")}
        share = len(rehearsed) / max(1, len(rollouts.completions))
        rows = float(len(self.state["rows"])) if self.state else 0.0
        return {"rehearsal/rows": rows, "rehearsal/share": share}

    def _tried(
        self, prompts: Sequence[Prompt], draw: BatchDraw, run: RunParts
    ) -> Iterator[StoredGroup]:
        answers = run.ask(prompts, self.samples, draw, SEED_PURPOSE)
        judged = run.judge(answers, [prompt.sample for prompt in prompts], draw)
        for prompt, group, of_group in zip(prompts, answers.completions, judged, strict=True):
            right = [j.reward is not None and j.reward > self.correct_above for j in of_group]
            if sum(right) >= self.near_perfect * len(right):
                yield store(prompt, group)

    def _number(self, prompt: Prompt) -> int | None:
        if not self.state:
            return None
        numbers = np.flatnonzero((self.state["rows"][:, :2] == prompt.place).all(1))
        return int(numbers[0]) if len(numbers) else None
