"""A reward for being short among the completions of a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.schema import Completion, Sample, Verdict
from vlmrl.scoring.verifier import CorrectnessVerifier, num_tokens


@dataclass(frozen=True)
class LengthKimi(CorrectnessVerifier):
    """l = 0.5 - (L - min) / (max - min) over the group; wrong completions get min(0, l).

    0 for all if all are of one length. In [-0.5, 0.5].

    Published sets: Kimi k1.5: the defaults, after a warm-up without it (a schedule of the weight).

    Source: Kimi k1.5, arXiv 2501.12599, section 2.3.3.

    Example:
    >>> from vlmrl.scoring.verifier import judge_group
    >>> words = ["a", "a b", "a b c", "a b c d"]
    >>> [round(v.score, 3) for v in judge_group(LengthKimi(), words, [1.0, 0.0, 0.0, 0.0])]
    [0.5, 0.0, -0.167, -0.5]
    """

    low: ClassVar[float] = -0.5
    high: ClassVar[float] = 0.5

    def judge(
        self, completions: Sequence[Completion], sample: Sample, rewards: Sequence[float | None]
    ) -> list[Verdict]:
        """Compare lengths within the group."""
        lengths = [num_tokens(c) for c in completions]
        shortest, spread = min(lengths), max(lengths) - min(lengths)
        if spread == 0:
            return [Verdict(0.0) for _ in completions]
        relative = [0.5 - (n - shortest) / spread for n in lengths]
        right = self.is_correct(rewards)
        return [Verdict(x if r else min(0.0, x)) for x, r in zip(relative, right, strict=True)]
