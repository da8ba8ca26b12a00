"""What a curve does: whether it is noisy, its mean then, and whether anything happens in it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from vlmrl.report.series import CurvePanel, Series

__all__ = ["is_quiet", "smoothed"]

FLAT = 0.02
"""A curve that moves by this share of its largest value, or less, is flat."""


def smoothed(series: Series) -> Series | None:
    """Return the centred moving average over a twentieth of a noisy curve; None if none is needed."""
    reach = len(series.values) // 40
    if reach < 1 or not _is_noisy(series):
        return None
    means = []
    for i in range(len(series.values)):
        around = [v for v in series.values[max(0, i - reach) : i + reach + 1] if v is not None]
        means.append(sum(around) / len(around) if around else None)
    return replace(series, values=tuple(means))


def is_quiet(panel: CurvePanel) -> bool:
    """Return whether nothing happens in a panel: no curve moves by more than a fiftieth of its size."""
    return all(_is_flat(smoothed(series) or series) for series in panel.series)


def _is_flat(series: Series) -> bool:
    known = [value for value in series.values if value is not None]
    if len(known) < 2:
        return not known
    return max(known) - min(known) <= FLAT * max(map(abs, known))


def _is_noisy(series: Series) -> bool:
    """Return whether a curve goes up and down its range several times; a learning rate's does not."""
    known = [value for value in series.values if value is not None]
    way = sum(abs(b - a) for a, b in pairwise(known))
    return bool(known) and way > 4 * (max(known) - min(known))
