"""A bonus where seeing the frames in order helped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlmrl.schema import Completion, Sample, Verdict
from vlmrl.scoring.verifier import SHUFFLED_REWARDS, SHUFFLED_SCORES, CorrectnessVerifier


@dataclass(frozen=True)
class TemporalContrast(CorrectnessVerifier):
    """1 for each correct completion if the group does well enough next to its control group, else 0.

    Well enough: the share of correct completions is at least `ratio` times that among completions
    to shuffled frames, whose rewards the strategy `shuffled_frames` puts into
    `sample.meta["shuffled_rewards"]` (a list of numbers). Without it the verifier does not
    apply. Correct: the combined reward of the item verifiers exceeds `correct_above`; with a
    format reward, set it above what format alone pays.

    Published sets: Video-R1 (T-GRPO): the defaults, with weight 0.3, and `group_size` G / 2 of
    `shuffled_frames`. Its code compares mean accuracies: for right-or-wrong rewards, the same.

    Source: Video-R1, arXiv 2503.21776, eq. 2-3.

    Example:
    >>> from vlmrl.scoring.verifier import judge_group
    >>> meta = {"shuffled_rewards": [0.0, 1.0]}
    >>> [v.score for v in judge_group(TemporalContrast(), ["a", "b"], [1.0, 0.0], meta)]
    [1.0, 0.0]
    """

    ratio: float = 0.8
    """The group does well enough from this multiple of its control group's share of correct answers."""
    correct_above: float = 0.1
    """A completion is correct if the deciding score exceeds this."""

    def judge(
        self, completions: Sequence[Completion], sample: Sample, rewards: Sequence[float | None]
    ) -> list[Verdict]:
        """Compare with the control group."""
        control = self._control(sample)
        known = [reward for reward in rewards if reward is not None]
        if not control or not known:
            return [Verdict.not_applicable("no control group") for _ in completions]
        ordered, shuffled = (sum(self.is_correct(group)) / len(group) for group in (known, control))
        helped = ordered >= self.ratio * shuffled
        parts = {"ordered": ordered, "shuffled": shuffled}
        return [Verdict(float(helped and r), parts) for r in self.is_correct(rewards)]

    def _control(self, sample: Sample) -> Sequence[float]:
        """Return what decides over the control group's completions; empty if there is none."""
        if self.correct_by is None:
            return sample.meta.get(SHUFFLED_REWARDS) or ()
        return (sample.meta.get(SHUFFLED_SCORES) or {}).get(self.correct_by) or ()
