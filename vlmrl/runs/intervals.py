"""Resamples of clusters, and the 95 % interval of a number, or of a difference of two, from them.

Clusters are drawn whole: what depends on each other, such as questions on one image, stays together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Statistic = Callable[[Array], Array]
"""From how often each cluster counts, [B, clusters], to the aggregate of each, [B]."""
RESAMPLES = 1000
CHUNK = 50
"""Resamples at a time: what they need is held in memory together."""
POOLED_RESAMPLES = 200
"""Resamples of a pooled aggregate, each of which ranks all detections."""


def draws(count: int, resamples: int = RESAMPLES, seed: int = 0) -> Iterator[Array]:
    """Yield how often each of `count` clusters is drawn, [some, count], `resamples` rows in all."""
    draw = np.random.default_rng(seed)
    for start in range(0, resamples, CHUNK):
        size = min(CHUNK, resamples - start)
        picks = draw.integers(0, count, (size, count))
        offsets = count * np.arange(size)[:, None]
        times = np.bincount((picks + offsets).ravel(), minlength=size * count)
        yield times.reshape(size, count).astype(float)


def percentiles(resampled: Array) -> tuple[float, float]:
    """Return the percentile interval of 95 % of what resamples gave, [B]."""
    low, high = np.quantile(resampled, [0.025, 0.975])
    return float(low), float(high)


def mean_interval(clusters: Sequence[Sequence[float]], resamples: int) -> tuple[float, float]:
    """Return the 95 % percentile interval of the mean of all values of the clusters."""
    sums = np.array([sum(values) for values in clusters])
    counts = np.array([len(values) for values in clusters])
    picks = np.random.default_rng(0).integers(0, len(sums), (resamples, len(sums)))
    return percentiles(sums[picks].sum(1) / counts[picks].sum(1))


def drawn(resamples: int, pooled: bool) -> int:
    """Return how many resamples are drawn: of a pooled aggregate there are fewer."""
    return min(resamples, POOLED_RESAMPLES) if pooled else resamples


def bounds(value: float, resampled: Array, count: int, pooled: bool) -> tuple[float, float]:
    """Return the 95 % interval of an aggregate, or of a difference of two, from its finite resamples.

    It is the percentile interval. A pooled aggregate of few rows is too high, and so are its resamples,
    of which there are few: its interval is that of a normal distribution with the resamples' standard
    deviation, moved by their bias, with Student's quantile (Davison and Hinkley 1997, Bootstrap
    Methods, eq. 5.5).

    Args:
        value: the aggregate of the rows as they are.
        resampled: [B] that of the resamples, at least two.
        count: number of clusters, at least two.
        pooled: whether the aggregate is pooled.
    """
    if not pooled:
        return percentiles(resampled)
    from scipy.special import stdtrit  # takes longer to import than all else here

    centre = 2 * value - float(resampled.mean())
    reach = float(stdtrit(count - 1, 0.975) * resampled.std(ddof=1))
    return centre - reach, centre + reach
