"""How many 95 % intervals hold the truth, and how often a difference is told where there is none.

    python performance/intervals.py [--draws 400]

Beside ours stands the plain percentile bootstrap of the same rows. Prints Markdown.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from tables import head

from vlmrl.benchmarking.aggregates import Rows, estimate, statistic_of
from vlmrl.benchmarking.scoring import RowScore
from vlmrl.features.benchmarks.comparison import estimate_difference, exact_difference
from vlmrl.runs.intervals import RESAMPLES, draws

Random = np.random.Generator
Made = tuple[np.ndarray, Sequence[str], Sequence[str]]
"""Scores, clusters and groups of rows."""
COUNTS = (6, 30, 100, 500)


def _rows(scores: np.ndarray) -> Made:
    names = [str(i) for i in range(len(scores))]
    return scores, names, [""] * len(scores)


def _binary(share: float) -> Callable[[Random, int], Made]:
    return lambda random, count: _rows((random.random(count) < share).astype(float))


def _clusters(random: Random, count: int) -> Made:
    """Three rows a cluster, whose chance to be right is Beta(1.2, 0.8): 0.6 in the mean."""
    chance = np.repeat(random.beta(1.2, 0.8, count // 3), 3)
    scores, _, groups = _rows((random.random(len(chance)) < chance).astype(float))
    return scores, [str(i // 3) for i in range(len(scores))], groups


def _groups(random: Random, count: int) -> Made:
    """Rows of six groups, right with chances of 0.2 to 0.7."""
    group = np.arange(count) % 6
    scores, names, _ = _rows((random.random(count) < 0.2 + group / 10).astype(float))
    return scores, names, [str(g) for g in group]


KINDS: dict[str, tuple[Callable[[Random, int], Made], float, str]] = {
    **{f"0 or 1, p = {p}": (_binary(p), p, "mean") for p in (0.03, 0.1, 0.5, 0.9, 0.97)},
    "Beta(2, 2)": (lambda r, n: _rows(r.beta(2, 2, n)), 0.5, "mean"),
    "Beta(0.3, 0.9)": (lambda r, n: _rows(r.beta(0.3, 0.9, n)), 0.25, "mean"),
    "half zeros": (lambda r, n: _rows(r.random(n) * (r.random(n) < 0.5)), 0.25, "mean"),
    "clusters of 3, p = 0.6": (_clusters, 0.6, "mean"),
    "mean of 6 groups": (_groups, 0.45, "mean_of_groups"),
}
"""By kind: how rows are drawn, the truth, and the aggregate."""


def coverage(rounds: int) -> Iterator[str]:
    """Yield a line a kind: by number of rows the share that holds the truth, ours and the percentiles'."""
    yield from head("| rows | " + " | ".join(f"{n}: ours | percentile" for n in COUNTS) + " |")
    for kind, (make, truth, aggregate) in KINDS.items():
        cells = []
        for count in COUNTS:
            random = np.random.default_rng([count, len(kind)])
            hits = np.zeros(2)
            for _ in range(rounds):
                scores, clusters, by = make(random, count)
                rows = Rows(scores, by, [""] * len(scores), [""] * len(scores))
                _, low, high = estimate(aggregate, rows, clusters)
                if low is not None and high is not None:
                    hits[0] += low <= truth <= high
                statistic, some = statistic_of(aggregate, rows, clusters)
                values = np.concatenate([statistic(times) for times in draws(some, RESAMPLES)])
                plain = np.quantile(values[np.isfinite(values)], [0.025, 0.975])
                hits[1] += plain[0] <= truth <= plain[1]
            cells += [f"{hit / rounds:.3f}" for hit in hits]
        yield f"| {kind} | {' | '.join(cells)} |"


def false_differences(rounds: int) -> Iterator[str]:
    """Yield a line a share: how often two models that are equally good are told apart on the same rows.

    Half of the rows are answered alike by both.
    """
    yield from head("| p | " + " | ".join(f"{n}: ours | bootstrap" for n in COUNTS[1:]) + " |")
    for share in (0.03, 0.1, 0.5, 0.9):
        cells = []
        for count in COUNTS[1:]:
            random = np.random.default_rng([count, int(100 * share)])
            told = np.zeros(2)
            for _ in range(rounds):
                alike = random.random(count) < 0.5
                first = random.random(count) < share
                second = np.where(alike, first, random.random(count) < share)
                pair = [[_row(i, float(s)) for i, s in enumerate(arm)] for arm in (first, second)]
                names = [row.id for row in pair[0]]
                arms = [
                    statistic_of("mean", Rows(arm.astype(float), names, names, names), names)[0]
                    for arm in (first, second)
                ]
                plain = estimate_difference([arms[0]], [arms[1]], count)
                ours = exact_difference(*pair, "strict") or plain
                told += [low > 0 or high < 0 for *_, low, high in (ours, plain)]
            cells += [f"{each / rounds:.3f}" for each in told]
        yield f"| {share} | {' | '.join(cells)} |"


def _row(index: int, score: float) -> RowScore:
    name = str(index)
    return RowScore(index, name, name, {}, None, score, True, "stop", "", "", "", None, "", "")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=400)
    rounds = parser.parse_args().draws
    print(f"# Intervals that hold the truth\n\nOf {rounds} draws each; 0.95 is meant.\n")
    print(*coverage(rounds), sep="\n")
    print("\n# Differences where there are none\n\nAt most 0.05 is meant.\n")
    print(*false_differences(rounds), sep="\n")


if __name__ == "__main__":
    main()
