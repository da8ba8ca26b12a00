"""How well the confidences that answers state agree with how often they are right."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vlmrl.benchmarking.scoring import RowScore

__all__ = ["Calibration", "calibrate"]

BINS = 10
RIGHT = 0.5
"""An answer is right when its strict score is at least this."""
_STATED = re.compile(r"<confidence>\s{0,9}([0-9]{1,3}(?:\.[0-9]{1,9})?)\s?(%?)\s{0,9}</confidence>")


@dataclass(frozen=True, slots=True)
class Calibration:
    """Over `count` answers: the expected calibration error and the Brier score, both in [0, 1]."""

    count: int
    error: float
    brier: float


def calibrate(rows: Sequence[RowScore]) -> Calibration | None:
    """Return the calibration of the last `<confidence>0.9</confidence>` (or `90%`) of each answer.

    Answers without one, or with one outside [0, 1], are left out; None if that is all.

    Source: Guo et al. 2017, arXiv 1706.04599, eq. 3, ten bins of equal width; Brier 1950.
    """
    stated = [
        (_stated(row.text), float(row.strict >= RIGHT)) for row in rows if row.strict is not None
    ]
    pairs = [(confidence, right) for confidence, right in stated if confidence is not None]
    if not pairs:
        return None
    confidence, right = np.array(pairs, float).T
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = np.bincount(bins, right - confidence, BINS)
    brier = float(np.mean((confidence - right) ** 2))
    return Calibration(len(pairs), float(np.abs(gaps).sum() / len(pairs)), brier)


def _stated(text: str) -> float | None:
    found = _STATED.findall(text)
    if not found:
        return None
    value = float(found[-1][0]) / (100 if found[-1][1] else 1)
    return value if value <= 1 else None
