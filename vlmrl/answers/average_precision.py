"""Average precision of one image's boxes by the COCO rules.

Equal to pycocotools' COCOeval on one image (tested to 1e-9), without building its data set.

Source: cocodataset/cocoapi, `PythonAPI/pycocotools/cocoeval.py`: 101 recall points, thresholds
0.50:0.05:0.95, at most 100 predictions a class, classes without a truth left out of the mean.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence

import numpy as np

from vlmrl.answers.geometry import Array

THRESHOLDS: list[float] = np.linspace(0.5, 0.95, 10).tolist()
RECALLS = np.linspace(0.0, 1.0, 101)
MAX_PREDICTIONS = 100


def average_precision(
    iou: Array, labels: Sequence[Hashable], scores: Sequence[float], true_labels: Sequence[Hashable]
) -> tuple[float, float, float]:
    """mAP, AP50 and AP75, each in [0, 1], of P predictions against N truths with IoU [P, N].

    Predictions of equal score keep their order.
    """
    classes = list(dict.fromkeys(true_labels))
    falling = sorted(range(len(labels)), key=lambda p: -scores[p])
    rows = []
    for name in classes:
        chosen = [p for p in falling if labels[p] == name][:MAX_PREDICTIONS]
        wanted = [n for n, label in enumerate(true_labels) if label == name]
        ranked = rank_candidates(iou[chosen][:, wanted])
        rows.append([_precision(find_hits(ranked, t), len(wanted)) for t in THRESHOLDS])
    mean = [sum(column) / len(classes) for column in zip(*rows, strict=True)]
    return sum(mean) / len(mean), mean[0], mean[5]


def rank_candidates(iou: Array) -> list[list[tuple[float, int]]]:
    """Return the truths that each prediction may hit, best first, from the IoU [P, N] of both.

    COCOeval gives ties to the last.
    """
    return [
        sorted(((v, n) for n, v in enumerate(row) if v >= THRESHOLDS[0]), reverse=True)
        for row in iou.tolist()
    ]


def find_hits(ranked: list[list[tuple[float, int]]], threshold: float) -> tuple[bool, ...]:
    """Return which predictions take a free truth, each its best, in order."""
    taken: set[int] = set()
    hits = []
    for candidates in ranked:
        free = (n for value, n in candidates if value >= threshold and n not in taken)
        if (truth := next(free, None)) is not None:
            taken.add(truth)
        hits.append(truth is not None)
    return tuple(hits)


@functools.lru_cache(maxsize=4096)
def _precision(hits: tuple[bool, ...], num_truths: int) -> float:
    """Mean precision over the recall points that these hits reach, in [0, 1]."""
    if not any(hits):
        return 0.0
    num_hits = np.cumsum(hits)
    precision = num_hits / (np.arange(1, len(hits) + 1) + np.spacing(1))
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    reached = np.searchsorted(num_hits / num_truths, RECALLS, side="left")
    return float(envelope[reached[reached < len(hits)]].sum() / len(RECALLS))
