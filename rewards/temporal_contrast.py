"""A bonus where seeing the frames in order helped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlmrl.lengths import correct
from vlmrl.schema import Completion, Sample, Verdict
from vlmrl.verifier import GroupVerifier

KEY = "shuffled_rewards"
"""Where the sample's meta holds the rewards of the control group, made from shuffled frames."""


@dataclass(frozen=True)
class TemporalContrast(GroupVerifier):
    """1 for each correct completion if the group does well enough beside its control group, else 0.

    Well enough: the mean reward is at least `ratio` times the mean reward on shuffled frames, which
    whoever generates the control group puts into `sample.meta["shuffled_rewards"]` (a list of
    numbers). Without it the verifier does not apply. Correct: the reward exceeds `correct_above`.

    Published sets: Video-R1 (T-GRPO): the defaults, with weight 0.3 and a control group of G / 2.

    Source: Video-R1, arXiv 2503.21776, eq. 2-3.

    Example:
    >>> from vlmrl.verifier import judge_group
    >>> meta = {"shuffled_rewards": [0.0, 1.0]}
    >>> [v.score for v in judge_group(TemporalContrast(), ["a", "b"], [1.0, 0.0], meta)]
    [1.0, 0.0]
    """

    ratio: float = 0.8
    correct_above: float = 0.1

    def judge(
        self, completions: Sequence[Completion], sample: Sample, rewards: Sequence[float | None]
    ) -> list[Verdict]:
        """Compare with the control group."""
        control = sample.meta.get(KEY)
        known = [reward for reward in rewards if reward is not None]
        if not control or not known:
            return [Verdict.not_applicable("no control group") for _ in completions]
        ordered, shuffled = sum(known) / len(known), sum(control) / len(control)
        helped = ordered >= self.ratio * shuffled
        parts = {"gain": ordered - shuffled}
        right = correct(rewards, self.correct_above)
        return [Verdict(float(helped and r), parts) for r in right]
