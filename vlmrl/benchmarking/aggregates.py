"""Aggregates of a benchmark's scores, and the interval of each by resampling clusters.

An aggregate is a table of per-row columns, whose sums over rows are all it needs, and a formula of
these sums; or, where sums are not enough, a function of how often each row counts (`Pooled`). So the
formula itself is resampled, be it a mean of group means, an F1, MME's sum or an average precision,
and not a mean of per-row numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from vlmrl.answers.average_precision import RECALLS, THRESHOLDS, find_hits, rank_candidates
from vlmrl.answers.geometry import iou_matrix, overlap_shares
from vlmrl.errors import import_extra
from vlmrl.runs.intervals import (
    RESAMPLES,
    Array,
    Statistic,
    bounds,
    drawn,
    draws,
    proportion_interval,
)

# --------------------------------------------------------------------------------------------------
# Average precision over all images of a benchmark, by the rules of COCO and of LVIS.
#
# Detections of all images are ranked together by their score, class by class. Which detection hits
# which truth depends on one image only, so it is decided once; a resample then counts each image as
# often as it was drawn.
#
# Equal to pycocotools' COCOeval and to lvis-api's LVISEval to 1e-9 (tested; `make reference` for LVIS).
#
# Source: cocodataset/cocoapi, `PythonAPI/pycocotools/cocoeval.py`; LVIS: the class LVISEval of
# lvis-dataset/lvis-api: 101 recall points, thresholds 0.50:0.05:0.95, boxes of all sizes.


MAX_PER_CLASS = 100
"""Detections of one image and class that count (COCO)."""
MAX_PER_IMAGE = 300
"""Detections of one image that count (LVIS)."""
CHUNK = 5
"""Weightings at a time: each holds all detections in memory."""


@dataclass(frozen=True, slots=True)
class Detections:
    """What was found in one image, and what is there: P and N boxes xyxy in pixels.

    `scores` [P] are the confidences of the model, 0 where it states none. `crowds` [N] are true for
    regions whose detections do not count. `verified` are the classes of which is known whether they
    are in the image, None for all; detections of others do not count. Of the classes `partial` not
    every object is annotated: what hits none of them does not count (LVIS).
    """

    found: Array
    found_labels: tuple[str, ...]
    scores: tuple[float, ...]
    right: Array
    right_labels: tuple[str, ...]
    crowds: tuple[bool, ...]
    verified: frozenset[str] | None = None
    partial: frozenset[str] = frozenset()

    def hits_found_right(self) -> tuple[int, int, int]:
        """Return how many true boxes are found at IoU 0.5, how many boxes are found, and are true.

        Boxes take truths in the order of listing, each the best that is free; those in crowds and
        those of partial classes that hit nothing do not count.
        """
        labels = set(self.found_labels) | set(self.right_labels)
        judged = [_judge(self, name, self._of(name)) for name in sorted(labels)]
        hits = sum(int(hit[0].sum()) for hit, _ in judged)
        misses = sum(int(missed[0].sum()) for _, missed in judged)
        return hits, hits + misses, len(self.right_labels) - sum(self.crowds)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, which `from_json` reads."""
        arrays = {"found": self.found.tolist(), "right": self.right.tolist()}
        verified = None if self.verified is None else sorted(self.verified)
        return {**asdict(self), **arrays, "verified": verified, "partial": sorted(self.partial)}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Detections:
        """Return what `to_json` wrote."""
        verified = plain["verified"]
        return cls(
            np.array(plain["found"], float).reshape(-1, 4),
            tuple(plain["found_labels"]),
            tuple(plain["scores"]),
            np.array(plain["right"], float).reshape(-1, 4),
            tuple(plain["right_labels"]),
            tuple(plain["crowds"]),
            None if verified is None else frozenset(verified),
            frozenset(plain["partial"]),
        )

    def _of(self, label: str) -> list[int]:
        if self.verified is not None and label not in self.verified:
            return []
        return [p for p, name in enumerate(self.found_labels) if name == label]


@dataclass(frozen=True, slots=True)
class _Class:
    """The detections of one class by falling score, and its truths.

    `rows` [D] is the image of each, `hits` and `misses` [T, D] how it counts at each threshold;
    `right_rows` [K] are the images of its truths, one entry a truth.
    """

    rows: np.ndarray
    hits: Array
    misses: Array
    right_rows: np.ndarray


def pool(
    images: Sequence[Detections], scored: bool, thresholds: slice = slice(None)
) -> Callable[[Array], Array]:
    """Return what gives, from weights [B, N] of the images, the average precision [B] in [0, 1].

    Args:
        images: N images. One is judged by LVIS's rules if its verified classes are known.
        scored: rank by the confidences; else all are equal, and the order is that of the images
            and of listing.
        thresholds: which of 0.50:0.05:0.95 to average over.
    """
    classes = _classes(images, scored)

    def precision(weights: Array) -> Array:
        if len(weights) > CHUNK:
            parts = [weights[start : start + CHUNK] for start in range(0, len(weights), CHUNK)]
            return np.concatenate([precision(part) for part in parts])
        rows = [_pooled_precision(group, weights, thresholds) for group in classes]
        if not rows:
            return np.full(len(weights), np.nan)
        return known_mean(np.stack(rows))

    return precision


def known_mean(values: Array) -> Array:
    """Return the mean over the first axis of what is not nan; nan where nothing is known."""
    known = ~np.isnan(values)
    total, count = np.where(known, values, 0.0).sum(0), known.sum(0)
    return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)


def _classes(images: Sequence[Detections], scored: bool) -> list[_Class]:
    """Return every class that has a truth."""
    parts: dict[str, list[tuple[int, list[float], Array, Array]]] = {}
    truths: dict[str, list[int]] = {}
    for row, image in enumerate(images):
        for label, crowd in zip(image.right_labels, image.crowds, strict=True):
            if not crowd:
                truths.setdefault(label, []).append(row)
        for label, chosen in _chosen(image, scored).items():
            scores = [image.scores[p] if scored else 1.0 for p in chosen]
            parts.setdefault(label, []).append((row, scores, *_judge(image, label, chosen)))
    return [_join(parts.get(label, []), rows) for label, rows in truths.items()]


def _chosen(image: Detections, scored: bool) -> dict[str, list[int]]:
    """Return for each class its detections that count, by falling score."""
    order = list(range(len(image.found_labels)))
    if scored:
        order.sort(key=lambda p: -image.scores[p])
    if image.verified is not None:
        order = order[:MAX_PER_IMAGE]
    chosen: dict[str, list[int]] = {}
    for p in order:
        label = image.found_labels[p]
        if image.verified is None or label in image.verified:
            chosen.setdefault(label, []).append(p)
    if image.verified is not None:
        return chosen
    return {label: indices[:MAX_PER_CLASS] for label, indices in chosen.items()}


def _judge(image: Detections, label: str, chosen: list[int]) -> tuple[Array, Array]:
    """Return which detections of a class are hits, and which are misses, at each threshold: [T, D].

    A detection takes the free truth that it overlaps most, of equal ones the last; else a crowd.
    """
    wanted = [n for n, name in enumerate(image.right_labels) if name == label]
    single = [n for n in wanted if not image.crowds[n]]
    crowds = [n for n in wanted if image.crowds[n]]
    boxes = image.found[chosen]
    ranked = rank_candidates(iou_matrix(boxes, image.right[single]))
    shares = overlap_shares(boxes[:, None], image.right[crowds][None, :], of_first=True)
    inside = shares.max(1, initial=0.0)
    hits = np.array([find_hits(ranked, t) for t in THRESHOLDS], dtype=bool)
    left_out = inside[None, :] >= np.array(THRESHOLDS)[:, None]
    misses = ~hits & ~left_out & (label not in image.partial)
    return hits.astype(float), misses.astype(float)


def _join(parts: list[tuple[int, list[float], Array, Array]], truths: list[int]) -> _Class:
    if not parts:
        nothing = np.zeros((len(THRESHOLDS), 0))
        return _Class(np.zeros(0, int), nothing, nothing, np.array(truths))
    scores = np.concatenate([part[1] for part in parts])
    order = np.argsort(-scores, kind="stable")
    rows = np.repeat([part[0] for part in parts], [len(part[1]) for part in parts])
    hits, misses = (np.concatenate([part[i] for part in parts], 1) for i in (2, 3))
    return _Class(rows[order], hits[:, order], misses[:, order], np.array(truths))


def _pooled_precision(judged: _Class, weights: Array, thresholds: slice) -> Array:
    """Return the average precision [B] of a class; nan where no truth of it was drawn."""
    count = weights[:, judged.right_rows].sum(1)
    drawn = weights[:, None, judged.rows]
    hits = np.cumsum(drawn * judged.hits[None, thresholds], -1)
    misses = np.cumsum(drawn * judged.misses[None, thresholds], -1)
    precision = hits / (hits + misses + np.spacing(1))
    envelope = np.maximum.accumulate(precision[..., ::-1], -1)[..., ::-1]
    with np.errstate(invalid="ignore", divide="ignore"):
        recall = hits / count[:, None, None]
    reached = np.searchsorted(RECALLS, recall, side="right")
    gained = np.diff(reached, axis=-1, prepend=0)
    mean = (envelope * gained).sum(-1).mean(-1) / len(RECALLS)
    return np.asarray(np.where(count > 0, mean, np.nan))


# --------------------------------------------------------------------------------------------------
# Correlations of stated with true numbers over all rows: Pearson's (PLCC) and Spearman's (SRCC).
#
# A detail is the pair (stated, true) of a row. Without a pair, None, the row is left out; a pair that
# states None counts as the end of the true numbers that is farther from its own, so that to be silent
# pays less than any guess. Numbers that do not vary correlate with nothing: 0.


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
    readings = [detail[0] if detail else None for detail in details]
    stated = np.array([np.nan if number is None else number for number in readings], float)
    stated = np.where(np.isnan(stated), farther, np.clip(stated, -LARGEST, LARGEST))
    return stated, np.where(kept > 0, true, 0.0), kept


def _ranks(values: Array, weights: Array) -> Array:
    """Return the mean rank of each value, less 1/2, where row n stands weights[:, n] times: [B, N]."""
    distinct, rank = np.unique(values, return_inverse=True)
    order = np.argsort(rank, kind="stable")
    starts = np.searchsorted(rank[order], np.arange(len(distinct)))
    size = np.add.reduceat(weights[:, order], starts, axis=1)
    return (np.cumsum(size, 1) - size / 2)[:, rank]


# --------------------------------------------------------------------------------------------------
# CIDEr of captions, whose words weigh by how few images have them in a reference.


CAPTIONS = ("pycocoevalcap.cider.cider", "captions")
"""The module by which CIDEr is computed, and its extra."""


def require_packages(names: Sequence[str]) -> None:
    """Refuse aggregates whose package is not installed, before anything is generated for them.

    Raises:
        MissingExtra: the package is not installed; the message says how to get it.
    """
    if "cider" in names:
        import_extra(*CAPTIONS)


def cider(details: Sequence[Mapping[str, Any]]) -> Statistic:
    """Return what gives, from weights [B, N] of the rows, the mean CIDEr [B], from 0 to 10.

    A detail is the `caption` of a row and its `references`. Words weigh by the references of all these
    rows, be a row drawn or not. The library is the one that both harnesses use.

    Raises:
        MissingExtra: the package is not installed.
    """
    library = import_extra(*CAPTIONS)
    captions = {row: [detail["caption"]] for row, detail in enumerate(details)}
    references = {row: [*detail["references"]] for row, detail in enumerate(details)}
    scores = np.zeros(len(captions))
    if any(text.split() for texts in references.values() for text in texts):  # else it raises
        _, scores = library.Cider().compute_score(references, captions)
    return lambda weights: np.asarray(weights @ scores / weights.sum(-1))


# --------------------------------------------------------------------------------------------------
# The aggregates by name, and the interval of each from resampled clusters.


@dataclass(frozen=True, slots=True)
class Rows:
    """The scored rows: `scores` [N] in [0, 1], `by` [N] the group of each, `readings` and `right` [N].

    `details` [N] is what else an aggregate needs of each row: its boxes, or the parts of its verdict.
    """

    scores: Array
    by: Sequence[str]
    readings: Sequence[str]
    right: Sequence[str]
    details: Sequence[Any] = ()


@dataclass(frozen=True, slots=True)
class Aggregate:
    """`columns` makes [N, K] of the rows, `value` an aggregate of each row of sums [..., K]."""

    columns: Callable[[Rows], Array]
    value: Callable[[Array], Array]


@dataclass(frozen=True, slots=True)
class Weighted:
    """`prepare` makes of the rows what gives, from weights [B, N] of the rows, the aggregate [B]."""

    prepare: Callable[[Rows], Statistic]


class Pooled(Weighted):
    """An aggregate that ranks all detections of the rows together, in [0, 1]."""


def statistic_of(aggregate: str, rows: Rows, clusters: Sequence[str]) -> tuple[Statistic, int]:
    """Return an aggregate as a function of how often each cluster counts, and the number of clusters.

    Clusters are in the order of their names, so that the statistics of other scores of the same rows
    are given the same draws.

    Args:
        aggregate: a name of `AGGREGATES`.
        rows: the scored rows.
        clusters: [N] for each row what it shares with rows it depends on, such as its image.
    """
    how = AGGREGATES[aggregate]
    cluster = _numbered(clusters)
    count = int(cluster.max()) + 1
    if isinstance(how, Weighted):
        weighted = how.prepare(rows)
        return lambda times: weighted(times[:, cluster]), count
    columns, value = how.columns(rows), how.value
    sums = np.stack([np.bincount(cluster, column, count) for column in columns.T], 1)
    return lambda times: value(times @ sums), count


def estimate(
    aggregate: str, rows: Rows, clusters: Sequence[str], resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float | None, float | None]:
    """Return an aggregate and its 95 % interval, None where one cluster is too few for any.

    That of a mean of 0 and 1 is exact (`proportion_interval`); others are of resampled clusters
    (`bounds`). The arguments are those of `statistic_of` and of `draws`.
    """
    if aggregate == "mean" and np.isin(rows.scores, (0, 1)).all():
        cluster = _numbered(clusters)
        sizes = np.bincount(cluster).astype(np.float64)
        right = np.bincount(cluster, rows.scores).astype(np.float64)
        return float(rows.scores.mean()), *proportion_interval(right, sizes)
    statistic, count = statistic_of(aggregate, rows, clusters)
    pooled = is_pooled(aggregate)
    estimates = np.concatenate([statistic(t) for t in draws(count, drawn(resamples, pooled), seed)])
    value = float(statistic(np.ones((1, count)))[0])
    estimates = estimates[np.isfinite(estimates)]
    if len(estimates) < 2 or count < 2:
        return value, None, None
    low, high = bounds(value, estimates, count, pooled)
    if low == high and value in (0, 1):  # no resample differs: as if each cluster were a row
        return value, *proportion_interval(np.full(count, value), np.ones(count))
    return value, (max(0.0, low) if pooled else low), (min(1.0, high) if pooled else high)


def is_pooled(aggregate: str) -> bool:
    """Return whether an aggregate ranks all detections of the rows together."""
    return isinstance(AGGREGATES[aggregate], Pooled)


def _numbered(names: Sequence[str]) -> np.ndarray:
    """Return for each name its number [N] among the distinct ones, in their order."""
    return np.unique(np.asarray(names, dtype=object).astype(str), return_inverse=True)[1]


def _members(names: Sequence[str]) -> Array:
    """Return 1 where a row is of a group, [N, groups]."""
    group = _numbered(names)
    return np.eye(group.max() + 1)[group]


def _mean(share: Callable[[Rows], Array]) -> Aggregate:
    return Aggregate(lambda rows: np.stack([share(rows), np.ones(len(rows.scores))], 1), _ratio)


def _ratio(sums: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return sums[..., 0] / sums[..., 1]


def _group_columns(rows: Rows, weights: Array | float = 1.0) -> Array:
    """Return for each group its scores and its count, by the rows' weights [N]: [N, 2 groups]."""
    member = _members(rows.by) * np.reshape(weights, (-1, 1))
    return np.concatenate([member * rows.scores[:, None], member], 1)


def _mean_of_groups(sums: Array) -> Array:
    """Return the mean of the groups' means; a group that was not drawn does not count."""
    half = sums.shape[-1] // 2
    with np.errstate(invalid="ignore"):
        means = sums[..., :half] / sums[..., half:]
    return known_mean(np.moveaxis(means, -1, 0))


def _squared_columns(rows: Rows) -> Array:
    """Return the columns of `_group_columns`; the group that has no name does not count."""
    return _group_columns(rows, np.array([bool(name) for name in rows.by], float))


def _mean_by_squares(sums: Array) -> Array:
    """Return the mean of the groups' means, each with its size squared as weight (ScreenSpot-Pro).

    VLMEvalKit repeats every group as often as it has rows.
    """
    half = sums.shape[-1] // 2
    scores, sizes = sums[..., :half], sums[..., half:]
    with np.errstate(invalid="ignore"):
        return (scores * sizes).sum(-1) / (sizes**2).sum(-1)


def _part_columns(rows: Rows) -> Array:
    """Return for each part of a group its scores, its count, and its count by its share of the whole.

    `by` is `group/part`; groups are alike in the whole, and so are parts in their group.
    """
    groups = [part.partition("/")[0] for part in sorted(set(map(str, rows.by)))]
    shares = [1 / (len(set(groups)) * groups.count(group)) for group in groups]
    member = _members(rows.by)
    return np.concatenate([member * rows.scores[:, None], member, member * shares], 1)


def _mean_of_parts(sums: Array) -> Array:
    """Return the mean over groups of the mean over their parts; a part that was not drawn does not count."""
    scores, rows, shared = np.split(sums, 3, -1)
    with np.errstate(invalid="ignore"):
        shares = shared / rows
        return np.nansum(scores / rows * shares, -1) / np.nansum(shares, -1)


def _f1_columns(rows: Rows) -> Array:
    """Return true positives, predicted positives and positives; `yes` is the positive answer."""
    stated = np.array([word == "yes" for word in rows.readings], float)
    right = np.array([word == "yes" for word in rows.right], float)
    return np.stack([stated * right, stated, right], 1)


def _f1(sums: Array, empty: float = 0.0) -> Array:
    """Return the F1 of hits, stated and right ones; `empty` where neither are there."""
    both = sums[..., 1] + sums[..., 2]
    return np.divide(2 * sums[..., 0], both, out=np.full_like(both, empty), where=both > 0)


def _pair_columns(rows: Rows) -> Array:
    """Return for each group of MME its scores, its pairs that are wholly right, and half its rows.

    `by` is `group/pair`: the two questions about one image.
    """
    pair = _numbered(rows.by)
    share = 1 / np.bincount(pair)[pair]
    whole = (np.bincount(pair, rows.scores) == np.bincount(pair))[pair] * share
    member = _members([name.rpartition("/")[0] for name in rows.by])
    columns = (rows.scores, np.ones(len(pair)), whole, share)
    return np.concatenate([member * column[:, None] for column in columns], 1)


def _sum_of_pairs(sums: Array) -> Array:
    """Return the sum over groups of 100 accuracy + 100 accuracy of whole pairs (MME)."""
    scores, rows, whole, pairs = np.split(sums, 4, -1)
    with np.errstate(invalid="ignore"):
        return 100 * np.nansum(scores / rows + whole / pairs, -1)


def _whole_columns(rows: Rows) -> Array:
    """Return for each row its share of its group, once if all of the group is right; `by` names it."""
    group = _numbered(rows.by)
    sizes = np.bincount(group)
    right = np.bincount(group, rows.scores) == sizes
    return np.stack([right[group] / sizes[group], 1 / sizes[group]], 1)


def _mastery(strictly: bool) -> Aggregate:
    """Make We-Math's score: the mean over composed problems of what each is worth.

    `by` is `problem/step`, or `problem/multi` for the problem as a whole. Right with all its steps it is
    worth 1, wrong with all its steps 1/2. Right with a wrong step is learned by heart, and worth 0; not
    `strictly`, only with no step right. In a row of the whole stand its worth and 1, else 0.
    """

    def columns(rows: Rows) -> Array:
        problem = _numbered([name.rpartition("/")[0] for name in rows.by])
        whole = np.array([name.endswith("/multi") for name in rows.by], float)
        right = (np.asarray(rows.scores) == 1).astype(float)
        steps, known = np.bincount(problem, 1 - whole), np.bincount(problem, (1 - whole) * right)
        every = (known == steps)[problem]
        some = every if strictly else ((known > 0) | (steps == 0))[problem]
        return np.stack([whole * np.where(right > 0, some, every / 2), whole], 1)

    return Aggregate(columns, _ratio)


def _grouped_whole_columns(rows: Rows) -> Array:
    """Return for each group its rows' shares of wholes, if all of the whole is right, and the shares.

    `by` is `group/whole`, such as the category and the episode of a step.
    """
    whole, share = _whole_columns(rows).T
    member = _members([name.rpartition("/")[0] for name in rows.by])
    return np.concatenate([member * whole[:, None], member * share[:, None]], 1)


def _recall_at(threshold: float) -> Aggregate:
    return _mean(lambda rows: (rows.scores >= threshold).astype(float))


def _recall_above(threshold: float) -> Aggregate:
    """Make the share of rows above a threshold, as Time-R1 counts."""
    return _mean(lambda rows: (rows.scores > threshold).astype(float))


def _part(name: str, threshold: float | None = None) -> Aggregate:
    """Make the mean of a part, 0 where there is no answer, or the share of rows that reach a threshold."""

    def share(rows: Rows) -> Array:
        shares = np.array([(detail or {}).get(name, 0.0) for detail in rows.details], float)
        return shares if threshold is None else (shares >= threshold).astype(float)

    return _mean(share)


def _part_where_there(name: str) -> Aggregate:
    """Make the mean of a part over the rows that have it, as that of clicks of the right type."""

    def columns(rows: Rows) -> Array:
        parts: list[Mapping[str, float]] = [detail or {} for detail in rows.details]
        return np.array([(part.get(name, 0.0), float(name in part)) for part in parts], float)

    return Aggregate(columns, _ratio)


def _precision(scored: bool, thresholds: slice = slice(None)) -> Pooled:
    return Pooled(lambda rows: pool(rows.details, scored, thresholds))


def _precision_of_groups(thresholds: slice = slice(None)) -> Pooled:
    """Make the mean of the groups' unscored precisions; a group without a truth does not count."""

    def prepare(rows: Rows) -> Statistic:
        by = np.asarray(rows.by, dtype=object).astype(str)
        members = [np.flatnonzero(by == name) for name in np.unique(by)]
        pools = [pool([rows.details[int(n)] for n in some], False, thresholds) for some in members]

        def value(weights: Array) -> Array:
            precisions = [
                precision(weights[:, some]) for precision, some in zip(pools, members, strict=True)
            ]
            return known_mean(np.stack(precisions))

        return value

    return Pooled(prepare)


def _box_columns(rows: Rows) -> Array:
    """Return hits at IoU 0.5, boxes found and true boxes of each row."""
    return np.array([detail.hits_found_right() for detail in rows.details], float).reshape(-1, 3)


def _truths_columns(rows: Rows) -> Array:
    """Return the columns of `_group_columns`, each row counted once a true box."""
    return _group_columns(rows, np.array([len(d.right_labels) for d in rows.details], float))


def _extras(sums: Array) -> Array:
    """Return the share of the boxes found that are none."""
    hits, stated = sums[..., 0], sums[..., 1]
    return 1 - np.divide(hits, stated, out=np.ones_like(hits), where=stated > 0)


PARTS: dict[str, Aggregate] = {
    "answered": _part("choice"),
    "iop": _part("iop"),
    "iop_at_0.3": _part("iop", 0.3),
    "iop_at_0.5": _part("iop", 0.5),
    "iou": _part("iou"),
    "iou_at_0.3": _part("iou", 0.3),
    "iou_at_0.5": _part("iou", 0.5),
    "moment_ap": _part("precision"),
    "moment_ap_at_0.5": _part("precision_at_0.5"),
    "moment_ap_at_0.75": _part("precision_at_0.75"),
    "type_match": _part("type"),
}
"""Aggregates of parts: choice, IoP, IoU, the precision of moments; and the type of an action."""

CORRELATIONS: dict[str, Aggregate | Weighted] = {
    "plcc": Aggregate(lambda rows: moments(rows.details), pearson),
    "srcc": Weighted(lambda rows: spearman(rows.details)),
}
"""Aggregates of the pairs of a stated and a true number."""

AGGREGATES: dict[str, Aggregate | Weighted] = {
    "mean": _mean(lambda rows: rows.scores),
    "mean_of_groups": Aggregate(_group_columns, _mean_of_groups),
    "mean_by_squares": Aggregate(_squared_columns, _mean_by_squares),
    "mean_of_groups_of_parts": Aggregate(_part_columns, _mean_of_parts),
    "f1": Aggregate(_f1_columns, _f1),
    "all_of_groups": Aggregate(_whole_columns, _ratio),
    "mean_of_groups_of_wholes": Aggregate(_grouped_whole_columns, _mean_of_groups),
    "click_match": _part_where_there("click"),
    "sum_of_pairs": Aggregate(_pair_columns, _sum_of_pairs),
    "mastery_strict": _mastery(strictly=True),
    "mastery_loose": _mastery(strictly=False),
    "recall_at_0.3": _recall_at(0.3),
    "recall_at_0.5": _recall_at(0.5),
    "recall_at_0.7": _recall_at(0.7),
    "recall_above_0.3": _recall_above(0.3),
    "recall_above_0.5": _recall_above(0.5),
    "recall_above_0.7": _recall_above(0.7),
    "box_f1": Aggregate(_box_columns, lambda sums: _f1(sums, empty=1.0)),
    "misses": Aggregate(_box_columns, lambda sums: 1 - _ratio(sums[..., [0, 2]])),
    "extras": Aggregate(_box_columns, _extras),
    "ap": _precision(scored=False),
    "ap50": _precision(scored=False, thresholds=slice(0, 1)),
    "ap_by_confidence": _precision(scored=True),
    "ap_of_groups": _precision_of_groups(),
    "ap50_of_groups": _precision_of_groups(slice(0, 1)),
    "mean_over_truths_of_groups": Aggregate(_truths_columns, _mean_of_groups),
    "cider": Weighted(lambda rows: cider(rows.details)),
    **PARTS,
    **CORRELATIONS,
}
"""Aggregates by name. `ap` is unscored: all boxes are equally sure, and rank as they are listed."""

WITHIN_A_GROUP = {"ap_of_groups": "ap", "ap": "ap", "box_f1": "box_f1"}
"""What is reported of one group of rows, by the aggregate of all; for any other the mean."""
