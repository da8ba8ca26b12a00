"""From an answer and a sample to what an aggregate of boxes needs: what was found, and what is there."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from vlmrl.answers import geometry, parsing, text
from vlmrl.answers.benchmark_rules import detections
from vlmrl.answers.benchmark_rules.detections import Labelled
from vlmrl.benchmarking.statistics.pooled_boxes import Detections
from vlmrl.schema import Frame, Sample

__all__ = ["listed_boxes", "odinw_row"]

NONE = np.zeros((0, 4))


def listed_boxes(answer: str, sample: Sample, frame: Frame) -> Detections:
    """Return the boxes that an answer lists, read as our verifiers do, and the sample's.

    A box without a label is of the one class that is asked for, else of none. `sample.meta` may hold
    as JSON: `categories` (the classes asked for), `crowds` (boxes xyxy in pixels with labels, as
    [[box, label], ...]), `verified` and `partial` (lists of classes: see `Detections`).
    """
    size = np.array([frame.width or 1, frame.height or 1] * 2, dtype=np.float64)
    found, _ = parsing.boxes(answer, frame) if answer else ([], "")
    asked = [text.label(name) for name in _said(sample, "categories", [])]
    only = asked[0] if len(asked) == 1 else ""
    right = sample.truth.boxes or ()
    crowds = _said(sample, "crowds", [])
    regions = np.array([box for box, _ in crowds], float).reshape(-1, 4)
    verified = _said(sample, "verified", None)
    # Whole pixels then give the very IoU of COCOeval.
    boxes, truths = (np.round(geometry.array(some) * size, 9) for some in (found, right))
    return Detections(
        boxes.reshape(-1, 4),
        tuple(text.label(one.label) or only for one in found),
        tuple(one.score or 0.0 for one in found),
        np.concatenate([truths.reshape(-1, 4), regions]),
        tuple([text.label(one.label) for one in right] + [text.label(name) for _, name in crowds]),
        (False,) * len(right) + (True,) * len(crowds),
        None if verified is None else frozenset(map(text.label, verified)),
        frozenset(map(text.label, _said(sample, "partial", []))),
    )


def odinw_row(answer: str, sample: Sample, frame: Frame) -> tuple[Detections, float]:
    """Return what lmms-eval makes of an answer to ODinW-13, and the share of truths it finds (ACC@0.5)."""
    width, height = frame.width or 1, frame.height or 1
    size = np.array([width, height] * 2, dtype=np.float64)
    right = sample.truth.boxes or ()
    true = np.round(geometry.array(right) * size, 9).reshape(-1, 4)
    labels = [(one.label or "").strip().lower() for one in right]
    truths: list[Labelled] = [
        ((a, b, c, d), name) for (a, b, c, d), name in zip(true.tolist(), labels, strict=True)
    ]
    found = detections.odinw_boxes(answer, truths, width, height)
    overlaps = detections.odinw_found(found, truths)
    one = Detections(
        np.array([box for box, _ in found], float).reshape(-1, 4) if found else NONE,
        tuple(name for _, name in found),
        (1.0,) * len(found),
        true,
        tuple(labels),
        (False,) * len(labels),
    )
    return one, sum(overlap >= 0.5 for overlap in overlaps) / len(overlaps) if overlaps else 0.0


def _said(sample: Sample, key: str, otherwise: Any) -> Any:
    value = sample.meta.get(key)
    return json.loads(value) if isinstance(value, str) and value else otherwise
