"""Pair predictions with truths one to one, in the ways that published runs do it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np

from vlmrl.answers import geometry, text
from vlmrl.answers.geometry import Array

__all__ = ["How", "agreement", "pairs"]

How = Literal["hungarian", "greedy_iou", "greedy_confidence", "label_first"]
Pair = tuple[int, int]


class Labelled(Protocol):
    """A prediction or truth with a label, None where it has none."""

    @property
    def label(self) -> str | None:
        """Return the label."""


def agreement(found: Sequence[Labelled], right: Sequence[Labelled]) -> Array:
    """[P, N], 1 where the labels of a prediction and a truth agree, else 0.

    Labels agree if they are equal after normalisation, or if the truth has none. A prediction
    without a label agrees if all truths share one.
    """
    wanted = [text.label(b.label) for b in right]
    stated = [text.label(b.label) for b in found]
    only_one = len(set(wanted)) == 1
    agree = [[not w or s == w or (not s and only_one) for w in wanted] for s in stated]
    return np.array(agree, dtype=np.float64).reshape(len(found), len(right))


def pairs(
    quality: Array, threshold: float, how: How = "hungarian", scores: Sequence[float] = ()
) -> list[Pair]:
    """Pairs (prediction, truth) of a [P, N] quality matrix with quality at or above the threshold.

    `hungarian`: as many pairs as possible, among those the largest sum. `greedy_iou`: the best pair
    of all first (V-Triune, VLM-R1). `greedy_confidence`: predictions by falling `scores`, each
    takes its best free truth (Visual-RFT). `label_first`: truths in order, each takes its best free
    prediction (V-Triune). A quality of 0 never pairs.
    """
    allowed = np.where((quality >= threshold) & (quality > 0), quality, 0.0)
    if how == "hungarian":
        # One more pair outweighs any sum of qualities, each of which is at most 1.
        bonus = min(quality.shape) + 1.0
        return geometry.match(np.where(allowed > 0, allowed + bonus, 0.0))
    if how == "greedy_iou":
        order = [
            divmod(int(k), quality.shape[1]) for k in np.argsort(-allowed, axis=None, kind="stable")
        ]
        return _taken([(p, n) for p, n in order if allowed[p, n] > 0])
    if how == "greedy_confidence":
        falling = sorted(range(len(quality)), key=lambda p: -scores[p])
        return _taken(
            [
                (p, int(n))
                for p in falling
                for n in np.argsort(-allowed[p], kind="stable")
                if allowed[p, n] > 0
            ]
        )
    columns = range(quality.shape[1])
    return _taken(
        [
            (int(p), n)
            for n in columns
            for p in np.argsort(-allowed[:, n], kind="stable")
            if allowed[p, n] > 0
        ]
    )


def _taken(candidates: list[Pair]) -> list[Pair]:
    """Return the candidates in order, each row and each column once."""
    rows: set[int] = set()
    columns: set[int] = set()
    kept = []
    for p, n in candidates:
        if p not in rows and n not in columns:
            rows.add(p)
            columns.add(n)
            kept.append((p, n))
    return kept
