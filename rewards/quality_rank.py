"""Decide whether stated qualities put the images of a batch in the right order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.answers import parsing
from vlmrl.schema import Completion, Sample, Verdict
from vlmrl.scoring.verifier import BatchVerifier

EPSILON = 1e-6
"""The paper's, under each root: it keeps the gradient finite where a probability is 0."""


@dataclass(frozen=True)
class QualityRank(BatchVerifier):
    """Fidelity of the order that stated qualities imply, by Thurstone's model, in [0, 1].

    For completion k of image i and every other image j of the same source: p = Phi((q_k -
    mean_j) / sqrt(var_i + var_j + 1e-6)), with the mean and unbiased variance of each group's
    stated numbers; g = 1, 0 or 0.5 as the truths say that i is better, worse or equal; fidelity =
    sqrt(p g + 1e-6) + sqrt((1 - p)(1 - g) + 1e-6), at most 1. The score is the mean over all j.

    Stated numbers are clamped to `scale` before any statistic; an answer without one number scores
    0 and is left out of its group's mean. Without another image of its source the verifier does
    not apply.

    Published sets: VisualQuality-R1: the defaults, each batch from one data set.

    Source: VisualQuality-R1, arXiv 2505.14460, eq. 2-5.
    Differs: what cannot be read scores 0, where the published code draws a random number.

    Example:
    >>> from vlmrl.scoring.verifier import judge_batch
    >>> from vlmrl.schema import Truth
    >>> truths = [Truth(number=4.5), Truth(number=2.5)]
    >>> found = judge_batch(QualityRank(), [["4", "5"], ["2", "3"]], truths)
    >>> [round(v.score, 4) for v in found[0]]
    [0.967, 0.9979]
    """

    needs: ClassVar[tuple[str, ...]] = ("number",)

    scale: tuple[float, float] = (1.0, 5.0)
    """Lowest and highest quality; stated numbers are clamped to it."""

    def __post_init__(self) -> None:
        """Refuse a scale that runs backwards."""
        if self.scale[0] >= self.scale[1]:
            raise ValueError(f"expected scale as (lowest, highest), got {self.scale}")

    def judge(
        self, groups: Sequence[Sequence[Completion]], samples: Sequence[Sample]
    ) -> list[list[Verdict]]:
        """Compare every image with every other of its source."""
        stated = [[self._read(c) for c in group] for group in groups]
        known = [[q for q in group if q is not None] for group in stated]
        judged = []
        for i, group in enumerate(stated):
            rivals = [
                j
                for j, other in enumerate(samples)
                if j != i and other.source == samples[i].source and known[j] and _is_ranked(other)
            ]
            if not rivals or not _is_ranked(samples[i]):
                judged.append([Verdict.not_applicable("no image to compare with") for _ in group])
                continue
            others = [
                (
                    _mean(known[j]),
                    _variance(known[i]) + _variance(known[j]),
                    _better(samples[i], samples[j]),
                )
                for j in rivals
            ]
            judged.append([_verdict(q, others) for q in group])
        return judged

    def _read(self, completion: Completion) -> float | None:
        """Read the stated quality within the scale; None unless there is exactly one number."""
        value, _ = parsing.number(completion.answer or "")
        return None if value is None else min(max(value, self.scale[0]), self.scale[1])


def _verdict(quality: float | None, others: list[tuple[float, float, float]]) -> Verdict:
    if quality is None:
        return Verdict(0.0, note="no number in the answer")
    total = sum(_fidelity(quality, mean, variance, g) for mean, variance, g in others)
    return Verdict(min(1.0, total / len(others)), answer=quality)


def _fidelity(quality: float, mean: float, variance: float, right: float) -> float:
    z = (quality - mean) / math.sqrt(variance + EPSILON)
    p = (1 + math.erf(z / math.sqrt(2))) / 2
    return math.sqrt(p * right + EPSILON) + math.sqrt((1 - p) * (1 - right) + EPSILON)


def _is_ranked(sample: Sample) -> bool:
    return sample.truth.number is not None


def _better(a: Sample, b: Sample) -> float:
    """Score 1 if the truth of a is higher, 0 if lower, 0.5 if equal."""
    left, right = a.truth.number, b.truth.number
    assert left is not None and right is not None
    return 0.5 if left == right else float(left > right)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _variance(values: list[float]) -> float:
    """Unbiased; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    mean = _mean(values)
    return sum((v - mean) ** 2 for v in values) / (len(values) - 1)
