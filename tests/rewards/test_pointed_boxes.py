"""Pointed boxes against the published sum, over every assignment."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Sequence
from typing import Any

import pytest

from vlmrl import plugins
from vlmrl.answers import templates
from vlmrl.schema import Box, Frame, Point, Truth


def slow_pairs(stated: list[Any], right: list[Any]) -> float:
    """The published sum, in loops: over every assignment, in pixels of 840 x 840."""

    def earned(stated_one: Any, right_one: Any) -> int:
        (a, p), (b, q) = stated_one, right_one
        w = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
        h = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
        union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - w * h
        near_box = sum(abs(x - y) for x, y in zip(a, b, strict=True)) / 4 < 10
        within = a[0] <= p[0] <= a[2] and a[1] <= p[1] <= a[3]
        return (w * h / union > 0.5) + near_box + (math.dist(p, q) < 30 and within)

    small, large = sorted((stated, right), key=len)
    swap = len(stated) > len(right)
    return max(
        sum(earned(*((b, a) if swap else (a, b))) for a, b in zip(small, order, strict=True))
        for order in itertools.permutations(large, len(small))
    ) / (3 * len(large))


def test_pointed_boxes_is_the_published_sum_by_every_assignment() -> None:
    draw = random.Random(3)

    def object_near(box: Sequence[int], away: int) -> Any:
        x1, y1, x2, y2 = (min(840, max(0, v + draw.randint(-away, away))) for v in box)
        point = [draw.randint(0, 840), draw.randint(0, 840)]
        if draw.random() < 0.7:
            point = [(box[0] + box[2]) // 2 + draw.randint(-25, 25), (box[1] + box[3]) // 2]
        return [x1, y1, x2, y2], point

    seen = set()
    for _ in range(150):
        corners = [[draw.randint(0, 400), draw.randint(0, 400)] for _ in range(draw.randint(1, 4))]
        right = [object_near([x, y, x + 160, y + 140], 0) for x, y in corners]
        chosen = draw.choices(right, k=draw.randint(1, 4))
        stated = [object_near(box, draw.choice([5, 15, 40])) for box, _ in chosen]
        truth = Truth(
            boxes=tuple(Box(*(v / 840 for v in box)) for box, _ in right),
            points=tuple(Point(x / 840, y / 840) for _, (x, y) in right),
        )
        answer = json.dumps([{"bbox_2d": box, "point_2d": point} for box, point in stated])
        frame = Frame(840, 840, "pixel")
        paid = plugins.build("verifier", "pointed_boxes").grade(
            answer, truth, templates.completion(answer, "none", frame)
        )
        assert paid.score == pytest.approx(slow_pairs(stated, right))
        seen.add(round(paid.score, 3))
    assert {0.0, 1.0} <= seen and len(seen) > 8
