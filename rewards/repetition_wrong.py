"""Punish wrong completions that repeat themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.answers.text import distinct_share
from vlmrl.schema import Completion, Sample, Verdict
from vlmrl.scoring.verifier import CorrectnessVerifier


@dataclass(frozen=True)
class RepetitionWrong(CorrectnessVerifier):
    """A wrong completion pays the share of its runs of `size` words that are no new ones; in [-1, 0].

    A correct one gets 0, and so does a text shorter than one run.

    Published sets: VL-Cogito: the defaults, with `correct_by: math` and weight 0.5.

    Source: VL-Cogito, arXiv 2507.22607, and its code; Yeo et al., arXiv 2502.03373, appendix C.2.
    Differs: words are those of `repetition`: of a script, or a long run, without spaces they are letters.

    Example:
    >>> from vlmrl.scoring.verifier import judge_group
    >>> texts = ["no no no no", "no no no no", "no"]
    >>> [v.score for v in judge_group(RepetitionWrong(size=1), texts, [0.0, 1.0, 0.0])]
    [-0.75, 0.0, 0.0]
    """

    low: ClassVar[float] = -1.0
    high: ClassVar[float] = 0.0

    size: int = 20
    """Words of a run."""

    def __post_init__(self) -> None:
        """Refuse runs of no words."""
        if self.size < 1:
            raise ValueError(f"expected size of at least 1, got {self.size}")

    def judge(
        self, completions: Sequence[Completion], sample: Sample, rewards: Sequence[float | None]
    ) -> list[Verdict]:
        """Measure the wrong completions."""
        right = self.is_correct(rewards)
        shares = [distinct_share(completion.text, self.size) for completion in completions]
        return [Verdict(0.0 if r else s - 1.0) for r, s in zip(right, shares, strict=True)]
