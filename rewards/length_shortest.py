"""A bonus for the shortest correct completion of a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.schema import Completion, Sample, Verdict
from vlmrl.scoring.verifier import CorrectnessVerifier, Laws, num_tokens


@dataclass(frozen=True)
class LengthShortest(CorrectnessVerifier):
    """1 for the shortest correct completion of the group if it has over `floor` tokens, else 0.

    Several that tie all get it.

    Published sets: Observe-R1: the defaults, with weight 0.2.

    Source: Observe-R1, arXiv 2505.12432.

    Example:
    >>> from vlmrl.scoring.verifier import judge_group
    >>> words = ["a", "a b c", "a b c d"]
    >>> [v.score for v in judge_group(LengthShortest(floor=2), words, [0.0, 1.0, 1.0])]
    [0.0, 1.0, 0.0]
    """

    laws: ClassVar[Laws] = Laws(options=({}, {"floor": 0}))

    floor: int = 100
    """A completion of at most this many tokens gets no bonus."""

    def judge(
        self, completions: Sequence[Completion], sample: Sample, rewards: Sequence[float | None]
    ) -> list[Verdict]:
        """Find the shortest correct one."""
        lengths = [num_tokens(c) for c in completions]
        right = self.is_correct(rewards)
        shortest = min((n for n, r in zip(lengths, right, strict=True) if r), default=0)
        return [
            Verdict(float(r and n == shortest and n > self.floor))
            for n, r in zip(lengths, right, strict=True)
        ]
