"""Official scorers of boxes, points, clicks and masks."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from pycocotools import mask as coco

from vlmrl.answers import geometry, masks, parsing, text
from vlmrl.benchmark_rules import detections, places
from vlmrl.benchmark_rules.detections import Labelled
from vlmrl.benchmarking.aggregates import Detections
from vlmrl.benchmarking.scores import (
    Score,
    Scorer,
    point_scorer,
)
from vlmrl.schema import Frame, Sample


def listed_boxes(answer: str, sample: Sample, frame: Frame) -> Detections:
    """Return the boxes that an answer lists, read as our verifiers do, and the sample's.

    A box without a label is of the one class that is asked for, else of none. `sample.meta` may hold
    as JSON: `categories` (the classes asked for), `crowds` (boxes xyxy in pixels with labels, as
    [[box, label], ...]), `verified` and `partial` (lists of classes: see `Detections`).
    """
    size = np.array([frame.width or 1, frame.height or 1] * 2, dtype=np.float64)
    stated, _ = parsing.boxes(answer, frame) if answer else ([], "")
    asked = [text.label(name) for name in _meta_value(sample, "categories", [])]
    only = asked[0] if len(asked) == 1 else ""
    right = sample.truth.boxes or ()
    crowds = _meta_value(sample, "crowds", [])
    regions = np.array([box for box, _ in crowds], float).reshape(-1, 4)
    verified = _meta_value(sample, "verified", None)
    # Whole pixels then give the very IoU of COCOeval.
    boxes, truths = (np.round(geometry.array(some) * size, 9) for some in (stated, right))
    return Detections(
        boxes.reshape(-1, 4),
        tuple(text.label(each.label) or only for each in stated),
        tuple(each.score or 0.0 for each in stated),
        np.concatenate([truths.reshape(-1, 4), regions]),
        tuple(
            [text.label(each.label) for each in right] + [text.label(name) for _, name in crowds]
        ),
        (False,) * len(right) + (True,) * len(crowds),
        None if verified is None else frozenset(map(text.label, verified)),
        frozenset(map(text.label, _meta_value(sample, "partial", []))),
    )


def odinw_row(answer: str, sample: Sample, frame: Frame) -> tuple[Detections, float]:
    """Return what lmms-eval makes of an answer to ODinW-13, and the share of truths it finds (ACC@0.5)."""
    width, height = frame.width or 1, frame.height or 1
    size = np.array([width, height] * 2, dtype=np.float64)
    right = sample.truth.boxes or ()
    true = np.round(geometry.array(right) * size, 9).reshape(-1, 4)
    labels = [(box.label or "").strip().lower() for box in right]
    truths: list[Labelled] = [
        ((a, b, c, d), name) for (a, b, c, d), name in zip(true.tolist(), labels, strict=True)
    ]
    stated = detections.odinw_boxes(answer, truths, width, height)
    overlaps = detections.odinw_found(stated, truths)
    image = Detections(
        np.array([box for box, _ in stated], float).reshape(-1, 4),
        tuple(name for _, name in stated),
        (1.0,) * len(stated),
        true,
        tuple(labels),
        (False,) * len(labels),
    )
    return image, sum(overlap >= 0.5 for overlap in overlaps) / len(overlaps) if overlaps else 0.0


def _meta_value(sample: Sample, key: str, otherwise: object) -> Any:
    value = sample.meta.get(key)
    return json.loads(value) if isinstance(value, str) and value else otherwise


def _size(sample: Sample) -> places.XY:
    width, height = sample.meta["size"]
    return float(width), float(height)


def _in_mask(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score the share of the points that lie in the mask, on the mask's own pixels."""
    assert sample.truth.masks
    mask = sample.truth.masks[0]
    height, width = masks.raster_size([mask], frame)
    points = places.unit_points(answer, width, height)
    filled = coco.decode(masks.encoded(mask, (height, width)))
    return Score(places.share_in_mask(points, filled), bool(points))


def _corner_pairs(answer: str, sample: Sample, frame: Frame) -> Score:
    assert sample.truth.boxes
    iou = places.corner_pairs_iou(answer, sample.truth.boxes[0].xyxy)
    return Score(iou or 0.0, iou is not None)


def _box(harness: places.Harness) -> Scorer:
    """Make a scorer of Acc@0.5 of the first box."""

    def score(answer: str, sample: Sample, frame: Frame) -> Score:
        assert sample.truth.boxes
        corners = places.refcoco_box(answer, frame, harness)
        overlap = places.raw_iou(corners or (0.0, 0.0, 0.0, 0.0), sample.truth.boxes[0].xyxy)
        return Score(float(overlap >= 0.5), corners is not None)

    return score


def _click(harness: places.Harness) -> Scorer:
    """Make a scorer of a click in the box."""

    def score(answer: str, sample: Sample, frame: Frame) -> Score:
        assert sample.truth.boxes
        return Score(float(places.screenspot_hit(answer, sample.truth.boxes[0], frame, harness)))

    return score


def _boxes_odinw(answer: str, sample: Sample, frame: Frame) -> Score:
    detail, share = odinw_row(answer, sample, frame)
    return Score(share, bool(detail.found_labels), detail=detail)


def _boxes_listed(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score with the F1 at IoU 0.5 of one image; COCOeval and LVISEval rank the boxes of all."""
    detail = listed_boxes(answer, sample, frame)
    hits, stated, right = detail.hits_found_right()
    value = 2 * hits / (stated + right) if stated + right else 1.0
    return Score(value, bool(detail.found_labels), detail=detail)


SCORERS: dict[str, Scorer] = {
    "box_lmms": _box("lmms_eval"),
    "box_vlmeval": _box("vlmevalkit"),
    "click_lmms": _click("lmms_eval"),
    "click_vlmeval": _click("vlmevalkit"),
    "boxes_odinw": _boxes_odinw,
    "boxes_listed": _boxes_listed,
    "click_screen": point_scorer(lambda a, s: places.screen_point(a, (1.0, 1.0))),
    "click_screen_sized": point_scorer(lambda a, s: places.screen_point(a, _size(s))),
    "click_pyautogui": point_scorer(lambda a, s: places.pyautogui_point(a, _size(s))),
    "points_in_mask": _in_mask,
    "box_corner_pairs": _corner_pairs,
}
