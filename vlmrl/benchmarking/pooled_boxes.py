"""Average precision over all images of a benchmark, by the rules of COCO and of LVIS.

Detections of all images are ranked together by their score, class by class. Which detection hits
which truth depends on one image only, so it is decided once; a resample then counts each image as
often as it was drawn.

Equal to pycocotools' COCOeval and to lvis-api's LVISEval to 1e-9 (tested; `make reference` for LVIS).

Source: cocodataset/cocoapi, `PythonAPI/pycocotools/cocoeval.py`; LVIS: the class LVISEval of
lvis-dataset/lvis-api: 101 recall points, thresholds 0.50:0.05:0.95, boxes of all sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from vlmrl.answers.average_precision import RECALLS, THRESHOLDS, find_hits, rank_candidates
from vlmrl.answers.geometry import Array, iou_matrix, overlap_shares

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
        rows = [_precision(group, weights, thresholds) for group in classes]
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


def _precision(judged: _Class, weights: Array, thresholds: slice) -> Array:
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
