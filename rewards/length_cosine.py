"""A reward that moves along a cosine with the length of the completion."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.schema import Completion, Sample, Verdict
from vlmrl.scoring.verifier import CorrectnessVerifier, Laws, num_tokens


@dataclass(frozen=True)
class LengthCosine(CorrectnessVerifier):
    """end + (start - end) (1 + cos(pi L / limit)) / 2, L at most `limit` tokens. In [-1, 1].

    `right` is (start, end) for correct completions, `wrong` for the others. Correct: the reward of
    the item verifiers exceeds `correct_above`.

    Published sets: VLM-R1: the defaults; VL-Cogito (r1v_length): `right: [0, 0], wrong: [-0.25, 0],
    limit: 750`.

    Source: Yeo et al., arXiv 2502.03373; VLM-R1, arXiv 2504.07615.

    Example:
    >>> from vlmrl.scoring.verifier import judge_group
    >>> [v.score for v in judge_group(LengthCosine(limit=2), ["a", "a b"], [1.0, 0.0])]
    [0.75, -0.5]
    """

    low: ClassVar[float] = -1.0
    laws: ClassVar[Laws] = Laws(options=({}, {"right": [0, 0], "wrong": [-0.25, 0], "limit": 4}))

    right: tuple[float, float] = (1.0, 0.5)
    """(start, end) for correct completions."""
    wrong: tuple[float, float] = (0.0, -0.5)
    """(start, end) for the others."""
    limit: int = 1024
    """Tokens from which on the end value is paid."""

    def __post_init__(self) -> None:
        """Refuse values outside the range."""
        if not all(-1 <= value <= 1 for value in (*self.right, *self.wrong)) or self.limit < 1:
            raise ValueError("right and wrong are in [-1, 1], limit is at least 1")

    def judge(
        self, completions: Sequence[Completion], sample: Sample, rewards: Sequence[float | None]
    ) -> list[Verdict]:
        """Place each completion on its cosine."""
        right = self.is_correct(rewards)
        return [
            Verdict(self._at(num_tokens(c), r)) for c, r in zip(completions, right, strict=True)
        ]

    def _at(self, length: int, right: bool) -> float:
        start, end = self.right if right else self.wrong
        share = min(1.0, length / self.limit)
        return end + (start - end) * (1 + math.cos(math.pi * share)) / 2
