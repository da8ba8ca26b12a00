"""A bonus for correct completions of a wanted length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.schema import Completion, Sample, Verdict
from vlmrl.scoring.verifier import CorrectnessVerifier, Laws, num_tokens


@dataclass(frozen=True)
class LengthWindow(CorrectnessVerifier):
    """1 for a correct completion of `shortest` to `longest` tokens, else 0.

    Correct: the reward of the item verifiers exceeds `correct_above`. Nobody gets it unless at
    least two completions of the group are correct.

    Published sets: Video-R1: the defaults, with weight 0.2.

    Source: Video-R1, arXiv 2503.21776, section 3.3.

    Example:
    >>> from vlmrl.scoring.verifier import judge_group
    >>> words = ["a b", "a b c d", "a b c d"]
    >>> [v.score for v in judge_group(LengthWindow(shortest=3, longest=5), words, [1.0, 1.0, 0.0])]
    [0.0, 1.0, 0.0]
    """

    laws: ClassVar[Laws] = Laws(options=({}, {"shortest": 1, "longest": 3}))

    shortest: int = 320
    """Fewest tokens that are paid."""
    longest: int = 512
    """Most tokens that are paid."""
    correct_above: float = 0.1
    """A completion is correct if the deciding score exceeds this."""

    def judge(
        self, completions: Sequence[Completion], sample: Sample, rewards: Sequence[float | None]
    ) -> list[Verdict]:
        """Reward the wanted length."""
        right = self.is_correct(rewards)
        enough = sum(right) > 1
        return [
            Verdict(float(enough and r and self.shortest <= num_tokens(c) <= self.longest))
            for c, r in zip(completions, right, strict=True)
        ]
