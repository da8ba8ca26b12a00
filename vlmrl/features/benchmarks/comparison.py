"""Paired differences between results on the same rows, with intervals.

Both arms are given the same draws of clusters, and the aggregate itself is computed again for each
draw: so what the arms share, the difficulty of the rows, does not widen the interval. An arm is one
result or several seeds of one; seeds are drawn again too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from vlmrl.benchmarking.aggregates import is_pooled, statistic_of
from vlmrl.benchmarking.scoring import Result, RowScore, rows_of
from vlmrl.errors import UserError
from vlmrl.runs.intervals import (
    RESAMPLES,
    Statistic,
    bounds,
    drawn,
    draws,
    proportion_interval,
)

Arm = Sequence[Result]
"""The results of one model on one benchmark, one for each seed."""

MAX_SHOWN = 50
"""Wins and losses of a comparison."""
FEW_DISCORDANT = 50
"""Below this many rows that only one of two models has right, their difference is judged exactly."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A number of both arms and the difference second - first, with its 95 % interval.

    From one cluster no interval can be had: it reaches from -inf to inf.
    """

    number: str
    """`official`, `strict` or another one that the benchmark prints."""
    column: str
    """Empty for all rows, else the column of groups."""
    group: str
    first: float
    second: float
    value: float
    low: float
    high: float
    count: int

    @property
    def bounded(self) -> bool:
        """Return whether there is an interval."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def verdict(self) -> Literal["better", "worse", "unclear"]:
        """Return what the interval says of the second arm."""
        return "better" if self.low > 0 else "worse" if self.high < 0 else "unclear"


@dataclass(frozen=True, slots=True)
class ChangedRow:
    """A row whose score changed: by how much (mean over seeds), and the answers of the first seeds."""

    index: int
    number: str
    change: float
    first: RowScore
    second: RowScore


@dataclass(frozen=True, slots=True)
class Contrast:
    """The comparison of two arms on one benchmark."""

    benchmark: str
    protocol: str
    unit: str
    differences: tuple[Difference, ...]
    wins: tuple[ChangedRow, ...]
    losses: tuple[ChangedRow, ...]
    faulted: int
    """Rows left out of a number because the verifier failed on them in some result."""

    @property
    def main(self) -> Difference:
        """Return the difference that answers the question: the first number, over all rows."""
        return self.differences[0]


def compare(first: Arm, second: Arm, resamples: int = RESAMPLES) -> Contrast:
    """Compare two arms on one benchmark.

    Raises:
        UserError: their results are of other rows or another protocol.
    """
    everything = [*first, *second]
    _check_same_rows(everything)
    reference = everything[0]
    differences = []
    for name, how in reference.numbers.items():
        chosen = _scored_by_all(name, everything)
        differences += [_difference(name, how, "", "", first, second, chosen, resamples)]
    main = next(iter(reference.numbers))
    for name in [name for name in reference.numbers if name in ("official", "strict", main)]:
        chosen = _scored_by_all(name, everything)
        for column in reference.groups:
            for value in reference.groups[column]:
                here = [i for i in chosen if reference.rows[i].groups[column] == value]
                if here:
                    among = (column, value, first, second, here, resamples)
                    differences += [_difference(name, ("mean", ""), *among)]
    moves = _moves(main, first, second)
    judged = "strict" if "strict" in reference.numbers else main
    return Contrast(
        reference.benchmark,
        reference.protocol,
        reference.unit,
        tuple(differences),
        wins=tuple(move for move in moves if move.change > 0),
        losses=tuple(move for move in reversed(moves) if move.change < 0),
        faulted=len(reference.rows) - len(_scored_by_all(judged, everything)),
    )


def _check_same_rows(results: Sequence[Result]) -> None:
    """Refuse results that no paired difference can be computed of.

    Raises:
        UserError: another benchmark, protocol or set of rows; one line says which.
    """
    reference = results[0]
    for other in results[1:]:
        for what in ("benchmark", "protocol"):
            a, b = getattr(reference, what), getattr(other, what)
            if a != b:
                raise UserError(f"expected results of one {what}, got {a!r} and {b!r}")
        rows = {row.index: row for row in reference.rows}
        others = {row.index: row for row in other.rows}
        if rows.keys() != others.keys():
            lacking = sorted(rows.keys() ^ others.keys())
            raise UserError(
                f"benchmark {reference.benchmark!r}: expected results of the same rows, got {len(rows)} "
                f"and {len(others)} rows, such as row {lacking[0]} in one of them only"
            )
        for index, row in rows.items():
            if (row.id, row.truth) != (others[index].id, others[index].truth):
                raise UserError(
                    f"benchmark {reference.benchmark!r}: expected results of the same rows, got another "
                    f"id or truth in row {index} ({row.id})"
                )


def estimate_difference(
    first: Sequence[Statistic],
    second: Sequence[Statistic],
    count: int,
    resamples: int = RESAMPLES,
    seed: int = 0,
    pooled: bool = False,
) -> tuple[float, float, float, float, float]:
    """Return the arms' values, the difference second - first and its 95 % bootstrap interval.

    The interval reaches from -inf to inf where none can be had: from one cluster.

    Args:
        first: the statistic of each seed of the first arm.
        second: those of the second.
        count: number of clusters that the statistics are given.
        resamples: number of bootstrap draws.
        seed: of the draws.
        pooled: whether the statistic is of a pooled aggregate; see `intervals.bounds`.
    """
    whole = np.ones((1, count))
    a, b = (float(np.mean([each(whole)[0] for each in arm])) for arm in (first, second))
    pick = np.random.default_rng([seed, 1])
    drawn_again = [
        _draw_seeds(second, times, pick) - _draw_seeds(first, times, pick)
        for times in draws(count, drawn(resamples, pooled), seed)
    ]
    resampled = np.concatenate(drawn_again)
    resampled = resampled[np.isfinite(resampled)]
    if len(resampled) < 2 or count < 2:
        return a, b, b - a, -math.inf, math.inf
    return a, b, b - a, *bounds(b - a, resampled, count, pooled)


def exact_difference(
    first: Sequence[RowScore], second: Sequence[RowScore], number: str
) -> tuple[float, float, float, float, float] | None:
    """Return what `estimate_difference` does, exactly, of scores 0 and 1 of which few differ.

    None if they are other scores, if rows share clusters, or if `FEW_DISCORDANT` rows differ or more. The
    interval is the widest that the share of rows that differ, and the share of these that the second has
    right, allow, each within that of Clopper and Pearson: it leaves 0 out just if the sign test does
    (McNemar 1947, Psychometrika 12(2)).
    """
    a, b = (np.array([row.score(number) for row in rows], float) for rows in (first, second))
    differs = a != b
    alone = len({row.cluster for row in first}) == len(first)
    if not alone or differs.sum() >= FEW_DISCORDANT or not np.isin([*a, *b], (0, 1)).all():
        return None
    fewest, most = proportion_interval(differs.astype(float), np.ones(len(a)))
    right = (0.0, 1.0)
    if differs.any():
        right = proportion_interval(b[differs], np.ones(int(differs.sum())))
    low, high = (2 * share - 1 for share in right)
    low *= most if low < 0 else fewest
    high *= most if high > 0 else fewest
    return float(a.mean()), float(b.mean()), float((b - a).mean()), low, high


def _draw_seeds(
    arm: Sequence[Statistic], times: npt.NDArray[np.float64], pick: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Return for each draw of clusters the mean over as many seeds, drawn again: [B].

    S seeds drawn again vary by (S - 1) / S of what new ones would: their distance from the mean is
    stretched by the root of the inverse.
    """
    values = np.stack([each(times) for each in arm])
    seeds = len(arm)
    if seeds == 1:
        return values[0]
    drawn = np.take_along_axis(values, pick.integers(0, seeds, values.shape), 0).mean(0)
    mean = values.mean(0)
    return mean + np.sqrt(seeds / (seeds - 1)) * (drawn - mean)


def _scored_by_all(number: str, results: Sequence[Result]) -> list[int]:
    """Return the places of the rows that have this number in every result."""
    rows = zip(*(result.rows for result in results), strict=True)
    return [i for i, same in enumerate(rows) if all(row.score(number) is not None for row in same)]


def _difference(
    name: str,
    how: tuple[str, str],
    column: str,
    group: str,
    first: Arm,
    second: Arm,
    chosen: Sequence[int],
    resamples: int,
) -> Difference:
    def statistics(arm: Arm) -> list[tuple[Statistic, int]]:
        pairs = []
        for result in arm:
            rows = [result.rows[i] for i in chosen]
            clusters = [row.cluster for row in rows]
            pairs.append(statistic_of(how[0], rows_of(name, how[1], rows), clusters))
        return pairs

    if not chosen:
        raise UserError(
            f"benchmark {first[0].benchmark!r}: no row has a {name} number in all results"
        )
    if how[0] == "mean" and len(first) == len(second) == 1:
        old, new = ([result.rows[i] for i in chosen] for result in (*first, *second))
        exact = exact_difference(old, new, name)
        if exact is not None:
            return Difference(name, column, group, *exact, len(chosen))
    before, after = statistics(first), statistics(second)
    pair = ([each for each, _ in before], [each for each, _ in after])
    estimated = estimate_difference(*pair, before[0][1], resamples, pooled=is_pooled(how[0]))
    return Difference(name, column, group, *estimated, len(chosen))


def _moves(number: str, first: Arm, second: Arm) -> list[ChangedRow]:
    """Return the rows whose score moved most, from the largest gain to the largest loss."""
    moves = []
    for i in _scored_by_all(number, [*first, *second]):
        before, after = (
            float(np.mean([result.rows[i].score(number) for result in arm]))
            for arm in (first, second)
        )
        rows = (first[0].rows[i], second[0].rows[i])
        if after != before:
            moves.append(ChangedRow(rows[0].index, number, after - before, *rows))
    moves.sort(key=lambda move: (-move.change, move.index))
    return moves


def by_benchmark(arms: Sequence[Sequence[Mapping[str, Result]]]) -> list[tuple[str, list[Arm]]]:
    """Return for each benchmark that all results have its arms.

    Raises:
        UserError: there is no such benchmark.
    """
    everything = [results for arm in arms for results in arm]
    shared = [name for name in everything[0] if all(name in results for results in everything)]
    if not shared:
        had = "; ".join(", ".join(results) for results in everything)
        raise UserError(f"expected results of one benchmark at least in common, got {had}")
    return [(name, [[results[name] for results in arm] for arm in arms]) for name in shared]
