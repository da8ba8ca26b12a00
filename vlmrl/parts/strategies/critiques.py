"""Critique-GRPO: wrong answers are told so, written again, and the best second answer joins its group.

Source: Zhang et al. 2025, "Critique-GRPO", arXiv 2506.03106, with its "simple" critiques: whether the
answer is right, and with `tell` the right one. As there, a group has one refinement among its
completions. Its shaped weight p / (p + 0.1) is the algorithm's (`critique_grpo`).
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import ClassVar

from vlmrl.schema import Completion, Prompt, Rewards, Rollouts, Sample, Turn
from vlmrl.scoring.scorer import Judged
from vlmrl.training.strategy import BatchDraw, RunParts, Strategy, of_origin, put_in
from vlmrl.truths import prompting

SEED_PURPOSE = 18
AGAIN = "Answer the question again."


@dataclass(frozen=True)
class Critiques(Strategy):
    """The best second try at a wrong answer, after a critique. Example: Critiques(tell=True)."""

    reads_completions: ClassVar[bool] = True

    tell: bool = False
    """Tell the right answer, too. The model may copy it; what it then writes is judged as any answer."""
    correct_above: float = 0.5
    """A completion is wrong if its reward does not exceed this."""
    tries: int = 1
    """Wrong completions of a group that are tried again, the first ones."""

    def __post_init__(self) -> None:
        if self.tries < 1:
            raise ValueError(f"expected tries of at least 1, got {self.tries}")

    def expand(
        self, rollouts: Rollouts, rewards: Rewards, draw: BatchDraw, run: RunParts
    ) -> tuple[Rollouts, Rewards]:
        """Ask for second answers; the best of a group takes the place of its last completion."""
        groups = range(len(rollouts.completions))
        asked = [(p, c) for p in groups for c in self._wrong(rollouts, rewards, p)]
        if not asked:
            return rollouts, rewards
        plain = [rollouts.batch.prompts[p] for p, _ in asked]
        criticised = [
            run.retell(prompt, self._with_critique(prompt, completion))
            for prompt, (_, completion) in zip(plain, asked, strict=True)
        ]
        answers = run.ask(criticised, 1, draw, SEED_PURPOSE)
        judged = run.judge(answers, [prompt.sample for prompt in plain], draw)
        best: dict[int, list[tuple[Completion, Judged]]] = {}
        for (p, _), group, of_group in zip(asked, answers.completions, judged, strict=True):
            best[p] = [max([*best.get(p, []), (group[0], of_group[0])], key=_reward)]
        return put_in(rollouts, rewards, best, "refinement")

    def metrics(self, rollouts: Rollouts, rewards: Rewards) -> dict[str, float]:
        """Return `critiques/share`, of groups with a refinement, and `critiques/reward`, its mean."""
        refined = of_origin(rollouts, rewards, "refinement")
        share = len(refined) / max(1, len(rollouts.completions))
        paid = [float(rewards.total[p, g]) for p, g in refined]
        reward = {"critiques/reward": statistics.fmean(paid)} if paid else {}
        return {"critiques/share": share, **reward}

    def _wrong(self, rollouts: Rollouts, rewards: Rewards, p: int) -> list[Completion]:
        group = enumerate(rollouts.completions[p])
        wrong = [
            c for g, c in group if rewards.valid[p, g] and rewards.total[p, g] <= self.correct_above
        ]
        return wrong[: self.tries]

    def _with_critique(self, prompt: Prompt, completion: Completion) -> Sample:
        sample = prompt.sample
        critique = "Your answer is wrong."
        right = prompting.write(sample.truth, prompt.frame, sample.form) if self.tell else None
        if right is not None:
            critique += f" The right answer is: {right}."
        turns = (Turn("user", sample.parts), Turn("assistant", (completion.text,)))
        return replace(sample, history=(*sample.history, *turns), parts=(f"{critique} {AGAIN}",))


def _reward(pair: tuple[Completion, Judged]) -> float:
    return -math.inf if pair[1].reward is None else pair[1].reward
