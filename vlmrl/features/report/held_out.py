"""What the samples of held-out evaluations tell: how each changed, and what could be had without learning.

Two evaluations are compared sample by sample, so that what differs between samples does not count. Levels
to hold the curve against are computed from the samples of the first evaluation, and only where the metric is
understood: the IoU of one box, or a score of right and wrong. Whatever is fitted to samples is fitted to one
half of them and measured on the other.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import numpy.typing as npt

from vlmrl.answers.geometry import overlap_shares
from vlmrl.runs.intervals import mean_interval
from vlmrl.runs.rollout_rows import Row, cluster_of, score_of

Key = tuple[str, str]
"""Source and id of a sample."""
RESAMPLES = 2000
FEWEST_CLUSTERS = 8
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
    name, means = score_name(metric), {}
    for key, row in chosen(metric, rows).items():
        values = [score_of(completion, name) for completion in row["completions"]]
        known = [score for score in values if score is not None]
        if known:
            means[key] = fmean(known)
    return means


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
    everything = [value for cluster in clusters.values() for value in cluster]
    low, high = (
        mean_interval(list(clusters.values()), RESAMPLES)
        if len(clusters) >= FEWEST_CLUSTERS
        else (None, None)
    )
    return Change(fmean(everything), low, high, len(everything))


def halves(rows: Mapping[Key, Row]) -> tuple[list[Key], list[Key]]:
    """Return the samples in two halves of whole clusters, by the order of the clusters."""
    order = list(dict.fromkeys(map(cluster_of, rows.values())))
    second = {cluster for number, cluster in enumerate(order) if number % 2}
    parts: tuple[list[Key], list[Key]] = ([], [])
    for key, row in rows.items():
        parts[cluster_of(row) in second].append(key)
    return parts


BEST_CONSTANT = "best constant answer"
CORRECTED = "constant correction"
DEMONSTRATIONS = "demonstrations"
FEWEST_SAMPLES = 16
"""Fewest samples that say something."""
TRIED = 64
"""True boxes of one half that are tried as the constant answer to the other."""
CLOSE = 1e-4
ALIKE = 0.95
"""Least share of scores that are the IoU; a few may differ by a wrong label."""

Boxes = npt.NDArray[np.float64]
"""[N, 4] x1, y1, x2, y2 in the unit square."""


def levels(metric: str, first: Sequence[Row]) -> dict[str, float]:
    """Return the levels that the rows of the first evaluation tell, by name.

    `BEST_CONSTANT`: the one answer to all samples that pays most. `CORRECTED`: the first model's own
    boxes, each side moved by its mean error: what can be had without seeing better.
    """
    rows = chosen(metric, first)
    paid = scores(metric, first)
    rows = {key: row for key, row in rows.items() if key in paid}
    if len(rows) < FEWEST_SAMPLES or metric.startswith("sampled/"):
        return {}
    name = score_name(metric)
    answered = {key: box for key, row in rows.items() if (box := _answer(row, name)) is not None}
    true = {key: box for key, row in rows.items() if (box := _truth(row)) is not None}
    if len(true) == len(rows) and _is_iou(paid, answered, true):
        return _of_boxes(halves(rows), answered, true)
    return _of_texts(rows, paid)


def scored_demonstrations(metric: str) -> str:
    """Return the key in sft.jsonl of the score that a metric gives the demonstrations themselves."""
    return f"{DEMONSTRATIONS}/{metric.removeprefix('sampled/')}"


def _of_boxes(
    parts: tuple[list[Key], list[Key]],
    answered: Mapping[Key, Boxes],
    true: Mapping[Key, Boxes],
) -> dict[str, float]:
    constant, corrected = [], []
    for fitted, measured in (parts, parts[::-1]):
        if not fitted or not measured:
            return {}
        known = np.stack([true[key] for key in fitted])
        tried = np.concatenate([known[:TRIED], [np.median(known, axis=0), known.mean(axis=0)]])
        best = max(tried, key=lambda box: float(overlap_shares(box[None], known).mean()))
        constant += [float(overlap_shares(best, true[key])) for key in measured]
        errors = [answered[key] - true[key] for key in fitted if key in answered]
        if errors:
            moved = np.mean(errors, axis=0)
            corrected += [
                float(overlap_shares(np.clip(answered[key] - moved, 0, 1), true[key]))
                if key in answered
                else 0.0
                for key in measured
            ]
    values = {BEST_CONSTANT: float(np.mean(constant))}
    if len(corrected) == len(constant):
        values[CORRECTED] = float(np.mean(corrected))
    return values


def _of_texts(rows: Mapping[Key, Row], paid: Mapping[Key, float]) -> dict[str, float]:
    """Return the share of the commonest truth, where a score is right or wrong and no place is asked."""
    kinds = ("text", "choice", "number", "labels")
    truths = [{kind: row["truth"].get(kind) for kind in kinds} for row in rows.values()]
    stated = [json.dumps(truth, sort_keys=True) for truth in truths if any(_stated(truth))]
    placed = any(row["truth"].get(kind) for row in rows.values() for kind in ("boxes", "points"))
    if placed or len(stated) < len(rows) or not {*paid.values()} <= {0.0, 1.0}:
        return {}
    return {BEST_CONSTANT: Counter(stated).most_common(1)[0][1] / len(stated)}


def _stated(truth: Mapping[str, object]) -> list[bool]:
    return [value not in (None, "", [], ()) for value in truth.values()]


def _answer(row: Row, name: str) -> Boxes | None:
    """Return the one box that the verifier read in the first completion of a row."""
    verdict = row["completions"][0]["verdicts"].get(name) or {}
    return _one_box(verdict.get("answer"))


def _truth(row: Row) -> Boxes | None:
    return _one_box(row["truth"].get("boxes"))


def _one_box(value: object) -> Boxes | None:
    if not isinstance(value, list) or len(value) != 1 or not isinstance(value[0], dict):
        return None
    box = value[0].get("box")
    if not isinstance(box, list) or len(box) != 4:
        return None
    return np.array(box, dtype=float) if all(isinstance(n, int | float) for n in box) else None


def _is_iou(
    paid: Mapping[Key, float], answered: Mapping[Key, Boxes], true: Mapping[Key, Boxes]
) -> bool:
    """Return whether a score is the IoU of the one box, and 0 without one: then it can be computed here."""
    alike = [
        abs(score - (float(overlap_shares(answered[key], true[key])) if key in answered else 0.0))
        < CLOSE
        for key, score in paid.items()
    ]
    return bool(answered) and sum(alike) >= ALIKE * len(alike)
