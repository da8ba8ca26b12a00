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


def percentiles(resampled: Array, count: int) -> tuple[float, float]:
    """Return the 95 % interval of what resamples of `count` clusters gave, [B].

    Its percentiles lie further out than 2.5 and 97.5, as Student's quantile lies beyond the normal one:
    few clusters vary less among themselves than what they were drawn from (Hesterberg 2015, The American
    Statistician 69(4), section 5.3).
    """
    from scipy.special import ndtr, stdtrit  # takes longer to import than all else here

    tail = ndtr(-np.sqrt(count / (count - 1)) * stdtrit(count - 1, 0.975))
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return float(low), float(high)


def proportion_interval(sums: Array, counts: Array) -> tuple[float, float]:
    """Return the 95 % interval of a share, from how many of each cluster's rows count, [clusters].

    It is that of Clopper and Pearson for as many rows as the clusters are worth: fewer than they have, if the
    rows of a cluster are alike (Korn and Graubard 1998, Survey Methodology 24(2)). With a cluster for each
    row it is exact. Where all rows count, or none does, a cluster is worth one row.
    """
    from scipy.special import betaincinv, stdtrit

    rows, clusters = float(counts.sum()), len(counts)
    share = float(sums.sum()) / rows
    worth = float(clusters)
    if clusters < rows and 0 < share < 1 and clusters > 1:
        variance = clusters / (clusters - 1) * float(((sums - share * counts) ** 2).sum()) / rows**2
        worth = min(rows, share * (1 - share) / variance) if variance else rows
        worth *= float(stdtrit(rows - 1, 0.975) / stdtrit(clusters - 1, 0.975)) ** 2
    right = share * worth
    low = float(betaincinv(right, worth - right + 1, 0.025)) if share > 0 else 0.0
    high = float(betaincinv(right + 1, worth - right, 0.975)) if share < 1 else 1.0
    return low, high


def mean_interval(clusters: Sequence[Sequence[float]], resamples: int) -> tuple[float, float]:
    """Return the 95 % interval of the mean of all values of the clusters: exact if they are 0 and 1.

    One cluster of other values has none: both bounds are its mean.
    """
    sums = np.array([sum(values) for values in clusters], float)
    counts = np.array([len(values) for values in clusters], float)
    if all(value in (0, 1) for values in clusters for value in values):
        return proportion_interval(sums, counts)
    if len(sums) < 2:
        return float(sums[0] / counts[0]), float(sums[0] / counts[0])
    picks = np.random.default_rng(0).integers(0, len(sums), (resamples, len(sums)))
    return percentiles(sums[picks].sum(1) / counts[picks].sum(1), len(sums))


def drawn(resamples: int, pooled: bool) -> int:
    """Return how many resamples are drawn: of a pooled aggregate there are fewer."""
    return min(resamples, POOLED_RESAMPLES) if pooled else resamples


def bounds(value: float, resampled: Array, count: int, pooled: bool) -> tuple[float, float]:
    """Return the 95 % interval of an aggregate, or of a difference of two, from its finite resamples.

    It is that of `percentiles`. A pooled aggregate of few rows is too high, and so are its resamples,
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
        return percentiles(resampled, count)
    from scipy.special import stdtrit

    centre = 2 * value - float(resampled.mean())
    reach = float(stdtrit(count - 1, 0.975) * resampled.std(ddof=1))
    return centre - reach, centre + reach
