"""The evaluation's metric of each held-out sample, as the rows of evals/step-N.jsonl have it.

Two evaluations are compared sample by sample, so that what differs between samples does not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from vlmrl.runs.rollout_rows import Row

__all__ = ["Change", "Key", "change", "chosen", "halves", "score_name", "scores"]

Key = tuple[str, str]
"""Source and id of a sample."""
RESAMPLES = 2000
FEWEST = 8
"""Fewest clusters of samples whose resamples say something."""


@dataclass(frozen=True, slots=True)
class Change:
    """The mean difference of `samples` samples, and its 95 % interval; None: there are too few of them."""

    mean: float
    low: float | None
    high: float | None
    samples: int

    @property
    def is_known(self) -> bool:
        """Return whether the interval excludes 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def score_name(metric: str) -> str:
    """Return the part of a metric that names the score: `box_iou` of `sampled/shapes/box_iou`."""
    return metric.rpartition("/")[2]


def chosen(metric: str, rows: Sequence[Row]) -> dict[Key, Row]:
    """Return the rows that a metric is about: greedy ones or sampled ones, of all sources or of one."""
    rest = metric.removeprefix("sampled/")
    drawn = "greedy" if rest == metric else "sampled"
    source = rest.rpartition("/")[0]
    return {
        (row["source"], row["id"]): row
        for row in rows
        if row.get("drawn", "greedy") == drawn and source in ("", row["source"])
    }


def scores(metric: str, rows: Sequence[Row]) -> dict[Key, float]:
    """Return the mean score of each sample's completions; samples without one are left out."""
    name, found = score_name(metric), {}
    for key, row in chosen(metric, rows).items():
        given = [_score(one, name) for one in row["completions"]]
        known = [score for score in given if score is not None]
        if known:
            found[key] = fmean(known)
    return found


def _score(completion: Row, name: str) -> float | None:
    if name == "reward":
        return float(completion["reward"]) if completion["valid"] else None
    verdict = completion["verdicts"].get(name)
    return verdict["score"] if verdict and verdict["applies"] else None


def cluster_of(row: Row) -> str:
    """Return what dependent samples share: the file of their main medium, by its content, else the id."""
    main = row.get("main_medium")
    medium = row["media"][main] if main is not None and main < len(row["media"]) else {}
    return str(medium.get("thumbnail") or f"{row['source']}/{row['id']}")


def change(metric: str, first: Sequence[Row], last: Sequence[Row]) -> Change | None:
    """Return how the samples that both evaluations scored have changed; None: there are none.

    The interval is the percentile bootstrap of the mean difference, clusters drawn whole.
    """
    before, after = scores(metric, first), scores(metric, last)
    clusters: dict[str, list[float]] = {}
    for key, row in chosen(metric, last).items():
        if key in before and key in after:
            clusters.setdefault(cluster_of(row), []).append(after[key] - before[key])
    if not clusters:
        return None
    everything = [one for found in clusters.values() for one in found]
    low, high = _interval(list(clusters.values())) if len(clusters) >= FEWEST else (None, None)
    return Change(fmean(everything), low, high, len(everything))


def _interval(clusters: Sequence[Sequence[float]]) -> tuple[float, float]:
    sums = np.array([sum(found) for found in clusters])
    counts = np.array([len(found) for found in clusters])
    picks = np.random.default_rng(0).integers(0, len(sums), (RESAMPLES, len(sums)))
    low, high = np.quantile(sums[picks].sum(1) / counts[picks].sum(1), [0.025, 0.975])
    return float(low), float(high)


def halves(rows: Mapping[Key, Row]) -> tuple[list[Key], list[Key]]:
    """Return the samples in two halves of whole clusters, by the order of the clusters."""
    order = list(dict.fromkeys(map(cluster_of, rows.values())))
    second = {cluster for number, cluster in enumerate(order) if number % 2}
    found: tuple[list[Key], list[Key]] = ([], [])
    for key, row in rows.items():
        found[cluster_of(row) in second].append(key)
    return found
