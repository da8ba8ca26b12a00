"""`rotated_iou` against a raster, and its symmetries."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.answers import geometry
from vlmrl.rewards.rotated_iou import RotatedIou, rotated_iou
from vlmrl.schema import Box, Frame, Truth
from vlmrl.scoring.verifier import judge
from vlmrl.truths import json_form, rotated_boxes
from vlmrl.truths.rotated_boxes import order_corners, turn_box

SIDE = 1000

middle, side, angle = st.floats(0.3, 0.7), st.floats(0.05, 0.4), st.floats(-360, 360)
turned = st.tuples(middle, middle, side, side, angle)


def corners(box):
    found = order_corners(turn_box(*box))
    assert found is not None
    return found


def raster(box) -> np.ndarray:
    """Which middles of SIDE x SIDE pixels are inside, from the distances along the box's own axes."""
    cx, cy, w, h, degrees = box
    ys, xs = (np.mgrid[0:SIDE, 0:SIDE] + 0.5) / SIDE
    cos, sin = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    along, across = (xs - cx) * cos + (ys - cy) * sin, (ys - cy) * cos - (xs - cx) * sin
    return (abs(along) <= w / 2) & (abs(across) <= h / 2)


@pytest.mark.parametrize("seed", range(12))
def test_the_overlap_is_that_of_a_raster(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = (
        (*rng.uniform(0.4, 0.6, 2), *rng.uniform(0.1, 0.5, 2), rng.uniform(0, 360))
        for _ in range(2)
    )
    one, other = raster(a), raster(b)
    wanted = (one & other).sum() / (one | other).sum()
    assert rotated_iou(corners(a), corners(b)) == pytest.approx(wanted, abs=4e-3)


@given(turned, turned, angle)
def test_iou_is_bounded_symmetric_and_blind_to_rotation(a, b, by: float) -> None:
    iou = rotated_iou(corners(a), corners(b))
    assert 0 <= iou <= 1
    assert rotated_iou(corners(b), corners(a)) == pytest.approx(iou, abs=1e-9)
    around = [turn_points(corners(box), by) for box in (a, b)]
    assert rotated_iou(*map(order_corners, around)) == pytest.approx(iou, abs=1e-7)


def turn_points(points, degrees: float):
    cos, sin = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    return [
        (0.5 + (x - 0.5) * cos - (y - 0.5) * sin, 0.5 + (x - 0.5) * sin + (y - 0.5) * cos)
        for x, y in points
    ]


@given(turned)
def test_a_box_is_itself_also_turned_by_half_a_circle(a) -> None:
    half = (*a[:4], a[4] + 180)
    assert rotated_iou(corners(a), corners(a)) == pytest.approx(1.0)
    assert rotated_iou(corners(a), corners(half)) == pytest.approx(1.0)


@given(middle, middle, side, side, middle, middle, side, side)
def test_without_an_angle_it_is_the_iou_of_boxes(x, y, w, h, u, v, r, s) -> None:
    sides = ((x, y, w, h), (u, v, r, s))
    boxes = [Box(cx - a / 2, cy - b / 2, cx + a / 2, cy + b / 2) for cx, cy, a, b in sides]
    iou = rotated_iou(corners((x, y, w, h, 0)), corners((u, v, r, s, 0)))
    assert iou == pytest.approx(geometry.iou(*boxes), abs=1e-9)


SHIP = json_form.read({"rotated_boxes": [[50, 50, 40, 20, 30]]}, Frame(100, 100))


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ('{"rotated_box": [50, 50, 40, 20, 30]}', 1.0),
        ('{"rbox": [50, 50, 20, 40, 120]}', 1.0),
        (json.dumps([{"corners": turn_box(50, 50, 40, 20, 210), "label": "ship"}]), 1.0),
        ('[{"rotated_box": [50, 50, 40, 20, 30]}, {"rotated_box": [9, 9, 4, 2, 30]}]', 0.5),
        ('{"corners": [[0, 0], [100, 100], [100, 0], [0, 100]]}', 0.08),  # any order of corners
        ('{"corners": [[0, 0], [100, 0], [10, 10], [0, 100]]}', 0.0),  # not convex
        ('{"rotated_box": [50, 50, 0, 20, 30]}', 0.0),
        ('{"rotated_box": [50, 50, 40, 20, NaN]}', 0.0),
        ('{"rotated_box": [1e308, 50, 40, 20, 30]}', 0.0),
        ("[]", 0.0),
    ],
)
def test_spellings_and_refusals(text: str, score: float) -> None:
    assert judge(RotatedIou(), text, SHIP).score == pytest.approx(score, abs=1e-9)


def test_an_answer_is_read_in_the_space_of_its_model() -> None:
    (ship,) = SHIP.value("rotated_boxes")
    frame = Frame(640, 480, "norm1000")
    text = json.dumps({"corners": [[1000 * x, 1000 * y] for x, y in ship.corners]})
    assert judge(RotatedIou(), text, SHIP, frame=frame).score == pytest.approx(1.0)
    (read,), _ = rotated_boxes.read(text, frame)
    assert json_form.convert(read, Frame(640, 480)).corners[0] == pytest.approx(
        (640 * read.corners[0][0], 480 * read.corners[0][1])
    )


def test_labels_tell_several_apart() -> None:
    boxes = [
        {"rotated_box": [30, 30, 20, 10, 45], "label": "ship"},
        {"rotated_box": [70, 70, 20, 10, 0], "label": "boat"},
    ]
    truth: Truth = json_form.read({"rotated_boxes": boxes}, Frame(100, 100))
    swapped = [{**boxes[0], "label": "boat"}, {**boxes[1], "label": "ship"}]
    assert judge(RotatedIou(), json.dumps(boxes), truth).score == pytest.approx(1.0)
    assert judge(RotatedIou(), json.dumps(swapped), truth).score == 0.0
    assert judge(RotatedIou(check_labels=False), json.dumps(swapped), truth).score == pytest.approx(
        1
    )
