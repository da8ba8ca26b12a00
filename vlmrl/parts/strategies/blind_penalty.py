"""The blind-answer penalty: pay only what the media add to an answer.

Each prompt with media is asked again without them. How well these blind answers do is what the words
alone are worth; a group counts the less the better they are, or it is taken from the rewards. No paper
is followed. With an algorithm that compares the completions of a group, what is taken from all of them
alike changes nothing, so a group's share of the loss is what the penalty is by default.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from vlmrl import plugins
from vlmrl.errors import UserError
from vlmrl.schema import Rewards, Rollouts, Verdict
from vlmrl.training.strategy import BatchDraw, RunParts, Strategy, pay

SEED_PURPOSE = 23
LABEL = "blind_penalty"
"""Name of the verdict with the grade of the blind answers."""
OF_GROUP = ("mean", "leave_one_out")
"""Baselines that take back what all completions of a group have in common."""


@dataclass(frozen=True)
class BlindPenalty(Strategy):
    """Less for what is guessed as well without the media. Example: BlindPenalty(how="weigh", count=4)."""

    curves: ClassVar[Mapping[str, str]] = {
        "blind_penalty/blind": "Mean grade of answers without the media, over the prompts that have any.",
        "blind_penalty/gap": "Mean grade of answers with the media, less that of those without.",
    }

    count: int | None = None
    """Answers without the media for each prompt; None: as many as its group has."""
    how: Literal["weigh", "multiply", "subtract"] = "weigh"
    """With b the mean grade of the blind answers to a prompt, in [0, 1]: weigh: its group counts 1 -
    weight b in the loss; multiply: its rewards are multiplied by that; subtract: weight b is taken
    from them. What an algorithm takes back by itself is refused."""
    weight: float = 1.0
    """In (0, 1]."""

    def __post_init__(self) -> None:
        if self.count is not None and self.count < 1:
            raise ValueError(f"expected count of at least 1, got {self.count}")
        if not 0 < self.weight <= 1:
            raise ValueError(f"expected a weight above 0 and at most 1, got {self.weight:g}")

    def begin(self, run: RunParts) -> None:
        """Check that the algorithm sees the penalty.

        Raises:
            UserError: it has no effect on the algorithm's advantages.
        """
        chosen = run.config.at(0).algorithm
        algorithm: Any = plugins.build("algorithm", chosen.name, chosen.options)
        baseline, scale = (getattr(algorithm, key, None) for key in ("baseline", "scale"))
        lost = {
            "subtract": baseline in OF_GROUP and f"baseline {baseline}",
            "multiply": scale == "std" and "scale std",
        }.get(self.how)
        if lost:
            raise UserError(
                f"strategy blind_penalty: how: {self.how} changes no advantage of algorithm "
                f"{chosen.name!r} ({lost}), which takes back what all completions of a group have in "
                "common: expected how: weigh"
            )

    def expand(
        self, rollouts: Rollouts, rewards: Rewards, draw: BatchDraw, run: RunParts
    ) -> tuple[Rollouts, Rewards]:
        """Ask without the media, and take what these answers earn from the group's share."""
        prompts = rollouts.batch.prompts
        asked = [p for p, prompt in enumerate(prompts) if prompt.sample.media]
        if not asked:
            return rollouts, rewards
        shown = [prompts[p] for p in asked]
        blind = [run.blind(prompt, prompt.sample.without_media()) for prompt in shown]
        answers = run.ask(blind, self.count or rollouts.shape[1], draw, SEED_PURPOSE)
        graded = run.grade(answers, shown, draw)
        verdicts_by_place: dict[tuple[int, int], Verdict] = {}
        worth: dict[int, float] = {}
        for p, grades in zip(asked, graded, strict=True):
            scores = [grade.score for grade in grades if grade.score is not None]
            verdict = Verdict(statistics.fmean(scores)) if scores else grades[0]
            if verdict.score is not None:
                worth[p] = verdict.score
            for g, verdicts in enumerate(rewards.verdicts[p]):
                if rewards.valid[p, g]:
                    seen = run.grade_of(prompts[p].sample, verdicts, draw).score
                    parts = {} if seen is None else {"seen": seen}
                    verdicts_by_place[p, g] = replace(verdict, parts=parts)
        return self._with_less(rollouts, pay(rewards, LABEL, verdicts_by_place, 0.0), worth)

    def metrics(self, rollouts: Rollouts, rewards: Rewards) -> dict[str, float]:
        """Return the mean grades that `curves` names; empty if nothing was asked."""
        verdicts = [of[LABEL] for group in rewards.verdicts for of in group if LABEL in of]
        blind = [verdict.score for verdict in verdicts if verdict.score is not None]
        pairs = [
            (v.parts["seen"], v.score)
            for v in verdicts
            if v.score is not None and "seen" in v.parts
        ]
        gap = {"blind_penalty/gap": statistics.fmean(a - b for a, b in pairs)} if pairs else {}
        return {"blind_penalty/blind": statistics.fmean(blind), **gap} if blind else {}

    def _with_less(
        self, rollouts: Rollouts, rewards: Rewards, worth: Mapping[int, float]
    ) -> tuple[Rollouts, Rewards]:
        """Return both with what blind answers are worth taken away, by prompt."""
        less = {p: self.weight * min(max(blind, 0.0), 1.0) for p, blind in worth.items()}
        if self.how == "weigh":
            prompts = list(rollouts.batch.prompts)
            for p, share in less.items():
                sample = prompts[p].sample
                sample = replace(sample, weight=sample.weight * (1 - share))
                prompts[p] = replace(prompts[p], sample=sample)
            return replace(rollouts, batch=replace(rollouts.batch, prompts=tuple(prompts))), rewards
        total = rewards.total.clone()
        for p, share in less.items():
            total[p] = total[p] * (1 - share) if self.how == "multiply" else total[p] - share
        total = total.masked_fill(~rewards.valid, 0.0)
        return rollouts, replace(rewards, total=total)
