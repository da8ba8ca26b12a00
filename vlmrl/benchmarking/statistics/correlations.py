"""Correlations of stated with true numbers over all rows: Pearson's (PLCC) and Spearman's (SRCC).

A detail is the pair (stated, true) of a row. Without a pair, None, the row is left out; a pair that
states None counts as the end of the true numbers that is farther from its own, so that to be silent
pays less than any guess. Numbers that do not vary correlate with nothing: 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vlmrl.answers.bootstrap import Array, Statistic

__all__ = ["Pair", "moments", "pearson", "spearman"]

Pair = tuple[float | None, float]
LARGEST = 1e6
"""What a stated number is cut to: beyond it squares lose the other rows."""


def moments(details: Sequence[Pair | None]) -> Array:
    """Return the columns whose sums give Pearson's correlation: 1, x, y, xx, yy, xy, [N, 6].

    x and y are taken from their means, and all are 0 in a row that is left out.
    """
    x, y, kept = _numbers(details)
    counted = kept.sum() or 1.0
    x, y = ((v - (v * kept).sum() / counted) * kept for v in (x, y))
    return np.stack([kept, x, y, x * x, y * y, x * y], 1)


def pearson(sums: Array) -> Array:
    """Return Pearson's correlation of the sums of `moments`: [..., 6] -> [...], in [-1, 1]."""
    count, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    spread = (count * xx - x * x, count * yy - y * y)
    # 1e-12: what rounding leaves of numbers that do not vary.
    varies = (spread[0] > 1e-12 * count * xx) & (spread[1] > 1e-12 * count * yy)
    below = np.sqrt(np.where(varies, spread[0] * spread[1], 1.0))
    return np.where(varies, np.clip((count * xy - x * y) / below, -1.0, 1.0), 0.0)


def spearman(details: Sequence[Pair | None]) -> Statistic:
    """Return what gives, from weights [B, N] of the rows, Spearman's correlation [B].

    It is Pearson's of the ranks, ties sharing the mean of theirs; a row of weight w counts w times in
    the ranks as well.
    """
    x, y, kept = _numbers(details)

    def correlate(weights: Array) -> Array:
        weights = weights * kept
        ranks = [_ranks(values, weights) for values in (x, y)]
        size = np.maximum(weights.sum(-1, keepdims=True), 1.0)
        a, b = (rank - (weights * rank).sum(-1, keepdims=True) / size for rank in ranks)
        parts = (np.ones_like(a), a, b, a * a, b * b, a * b)
        return pearson(np.stack([(weights * part).sum(-1) for part in parts], -1))

    return correlate


def _numbers(details: Sequence[Pair | None]) -> tuple[Array, Array, Array]:
    """Return the stated and the true number of each row, and 1 for each that counts: [N] each."""
    kept = np.array([detail is not None for detail in details], float)
    true = np.array([detail[1] if detail else np.nan for detail in details], float)
    low, high = (np.nanmin(true), np.nanmax(true)) if kept.any() else (0.0, 0.0)
    farther = np.where(true - low > high - true, low, high)
    said = [detail[0] if detail else None for detail in details]
    stated = np.array([np.nan if one is None else one for one in said], float)
    stated = np.where(np.isnan(stated), farther, np.clip(stated, -LARGEST, LARGEST))
    return stated, np.where(kept > 0, true, 0.0), kept


def _ranks(values: Array, weights: Array) -> Array:
    """Return the mean rank of each value, less 1/2, where row n stands weights[:, n] times: [B, N]."""
    found, place = np.unique(values, return_inverse=True)
    order = np.argsort(place, kind="stable")
    starts = np.searchsorted(place[order], np.arange(len(found)))
    size = np.add.reduceat(weights[:, order], starts, axis=1)
    return (np.cumsum(size, 1) - size / 2)[:, place]
