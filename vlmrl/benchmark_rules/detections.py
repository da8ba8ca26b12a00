"""Lists of labelled boxes: ODinW-13."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from vlmrl.benchmark_rules.places import raw_iou

Numbers = tuple[float, float, float, float]
Labelled = tuple[Numbers, str]
"""A box xyxy and its label in lower case; no label is the text "none"."""

MAX_STARTS = 200
"""Braces at which an object is looked for in vain before the rest is given up."""
_FENCED = re.compile(r"```(?:json)?\s*(.*?)```", re.DOTALL | re.IGNORECASE)
_NUMBER = r"(-?\d+(?:\.\d+)?)"
_QUAD = re.compile(r"[\s,]+".join([_NUMBER] * 4))


def odinw_boxes(answer: str, truths: Sequence[Labelled], width: int, height: int) -> list[Labelled]:
    """Read boxes in pixels as lmms-eval does for ODinW-13 (tasks/odinw13/utils.py).

    The whole answer, a fenced block, or every object in it as JSON; else groups of four numbers,
    which have no label. Each box is taken as pixels, as 0-1 or as 0-1000, whichever overlaps a truth
    of its label most.

    Differs from strict: the space is chosen by the truth. Differs from the harness: numbers that
    are not finite, over which it stops, are no boxes, and after many braces without an object the
    rest is not searched.
    """
    boxes = [entry for block in _blocks(answer) for entry in _flatten(block)]
    if not boxes:
        boxes = [(_four(match.groups()), "none") for match in _QUAD.finditer(answer)]
    return [
        (_best(box, [t for t, name in truths if name == label], width, height), label)
        for box, label in boxes
        if all(map(math.isfinite, box))
    ]


def odinw_found(boxes: Sequence[Labelled], truths: Sequence[Labelled]) -> list[float]:
    """Return the IoU with which each truth is found, 0 where it is not; the best pairs come first.

    Differs from strict: boxes that find nothing cost nothing.
    """
    overlaps = [0.0] * len(truths)
    for label in dict.fromkeys(name for _, name in truths):
        pairs = [
            (raw, t, f)
            for t, (right, name) in enumerate(truths)
            for f, (box, label_given) in enumerate(boxes)
            if name == label_given == label and (raw := _iou(right, box)) > 0
        ]
        taken: set[int] = set()
        for raw, t, f in sorted(pairs, key=lambda pair: pair[0], reverse=True):
            if not overlaps[t] and f not in taken:
                overlaps[t] = raw
                taken.add(f)
    return overlaps


def _iou(a: Numbers, b: Numbers) -> float:
    """Return the IoU; a box that runs backwards has no area."""
    area = max(0.0, b[2] - b[0]) * max(0.0, b[3] - b[1])
    return raw_iou(a, b) if area > 0 else 0.0


def _best(box: Numbers, truths: Sequence[Numbers], width: int, height: int) -> Numbers:
    """Return the reading of a box that overlaps a truth most; of equal ones the first."""
    scale = (width, height, width, height)
    readings = [box]
    if max(box) <= 1:
        readings.append(_four(n * s for n, s in zip(box, scale, strict=True)))
    if max(box) <= 1000:
        readings.append(_four(n / 1000 * s for n, s in zip(box, scale, strict=True)))
    if not truths:
        return box
    return max(readings, key=lambda reading: max(_iou(truth, reading) for truth in truths))


def _blocks(answer: str) -> list[Any]:
    for text in (answer, *(match[1] for match in _FENCED.finditer(answer))):
        try:
            return [json.loads(text)]
        except (ValueError, RecursionError):
            continue
    return _objects(answer)


def _objects(answer: str) -> list[Any]:
    """Return every object that can be read, the outer ones first."""
    objects: list[Any] = []
    start, vain = answer.find("{"), 0
    while start >= 0 and vain < MAX_STARTS and (end := _closing(answer, start)):
        try:
            objects.append(json.loads(answer[start:end]))
            start = answer.find("{", end)
        except (ValueError, RecursionError):
            start, vain = answer.find("{", start + 1), vain + 1
    return [objects] if objects else []


def _closing(answer: str, start: int) -> int:
    """Return where the object that begins at `start` ends; 0 if it does not."""
    depth, quoted, escaped = 0, False, False
    for position in range(start, len(answer)):
        mark = answer[position]
        if escaped:
            escaped = False
        elif mark == "\\":
            escaped = True
        elif mark == '"':
            quoted = not quoted
        elif not quoted and mark in "{}":
            depth += 1 if mark == "{" else -1
            if depth == 0:
                return position + 1
    return 0


def _flatten(payload: object) -> list[Labelled]:
    """Return the boxes of nested lists and objects, the last ones first as the harness does."""
    labelled, left = [], [payload]
    while left:
        node = left.pop()
        if isinstance(node, list):
            left += node
        elif isinstance(node, dict):
            box = next((node[k] for k in ("bbox_2d", "bbox", "box_2d", "box") if k in node), None)
            if isinstance(box, list) and len(box) == 4:
                if (numbers := _numbers(box)) is not None:
                    labelled.append((numbers, _label(node)))
            else:
                left += node.values()
    return labelled


def _label(node: dict[str, Any]) -> str:
    keys = ("label", "class", "category", "name", "class_name")
    return str(next((node[key] for key in keys if key in node), None)).strip().lower()


def _numbers(box: list[Any]) -> Numbers | None:
    try:
        return _four(box)
    except (TypeError, ValueError, OverflowError):
        return None


def _four(values: Any) -> Numbers:
    a, b, c, d = map(float, values)
    return a, b, c, d
