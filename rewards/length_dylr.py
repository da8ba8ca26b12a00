"""A length penalty on wrong completions, measured by the group's correct ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.schema import Completion, Sample, Verdict
from vlmrl.scoring.verifier import CorrectnessVerifier, num_tokens


@dataclass(frozen=True)
class LengthDylr(CorrectnessVerifier):
    """Dynamic length reward: wrong completions pay for differing from the correct ones' length.

    With L* the mean length of the group's correct completions, a wrong one of length L gets -0.25
    (1 + cos(pi L / L*)), which is -0.5 at length 0, 0 at L*, and -0.5 from 2 L* on. In a group
    without a correct one it gets -0.125 (1 + cos(pi L / target)), 0 from `target` tokens on, and -0.25
    from `limit` on.
    Correct completions get 0. In [-0.5, 0].

    Published sets: VL-Cogito, stage 3: `limit: 4096`.

    Source: VL-Cogito, arXiv 2507.22607, section 3.2.

    Example:
    >>> from vlmrl.scoring.verifier import judge_group
    >>> [v.score for v in judge_group(LengthDylr(), ["a b", "a b", "a b c d"], [1.0, 0.0, 0.0])]
    [0.0, -0.0, -0.5]
    """

    low: ClassVar[float] = -0.5
    high: ClassVar[float] = 0.0

    target: int = 750
    """Tokens from which on a group without a correct completion is not penalised."""
    limit: int | None = None
    """Tokens from which on it pays the most after all, as for a completion that was cut; None: never."""

    def judge(
        self, completions: Sequence[Completion], sample: Sample, rewards: Sequence[float | None]
    ) -> list[Verdict]:
        """Measure the wrong completions."""
        right = self.is_correct(rewards)
        lengths = [num_tokens(c) for c in completions]
        of_right = [n for n, r in zip(lengths, right, strict=True) if r]
        mean = sum(of_right) / len(of_right) if of_right else None
        return [
            Verdict(0.0 if r else self._penalty(n, mean))
            for n, r in zip(lengths, right, strict=True)
        ]

    def _penalty(self, length: int, mean: float | None) -> float:
        if mean is None:
            if self.limit is not None and length >= self.limit:
                return -0.25
            share = min(1.0, length / self.target)
            return -0.125 * (1 + math.cos(math.pi * share))
        share = min(2.0, length / mean) if mean else 2.0
        return -0.25 * (1 + math.cos(math.pi * share))
