"""Spaces, boxes, spans and matching, against numbers worked by hand and against brute force."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from vlmrl.answers import geometry
from vlmrl.schema import Box, Frame, Point, Span

FRAME = Frame(640, 480, resized_width=320, resized_height=224, duration=20.0)
SPACES = {"pixel": (640, 480), "resized": (320, 224), "norm1000": (1000, 1000), "norm1": (1, 1)}


def in_space(space):
    return Frame(640, 480, space, 320, 224, 20.0)


side = st.floats(0, 1, allow_nan=False)


@st.composite
def boxes(draw, label=st.none()):
    x1, x2 = sorted((draw(side), draw(side)))
    y1, y2 = sorted((draw(side), draw(side)))
    made = geometry.clean_box(x1, y1, max(x2, x1 + 0.01), max(y2, y1 + 0.01), draw(label))
    return made or Box(0.0, 0.0, 1.0, 1.0)


@st.composite
def spans(draw):
    start, length = draw(st.floats(0, 50)), draw(st.floats(0.01, 50))
    return Span(start, start + length)


@pytest.mark.parametrize("space", SPACES)
def test_a_box_comes_back_from_every_space(space):
    box = Box(0.125, 0.25, 0.5, 0.75)
    numbers = geometry.from_unit(box, in_space(space))
    width, height = SPACES[space]
    assert_allclose(numbers, (0.125 * width, 0.25 * height, 0.5 * width, 0.75 * height))
    assert_allclose(geometry.to_unit(*numbers, in_space(space)), box.xyxy)


@given(boxes(), st.sampled_from(sorted(SPACES)), st.sampled_from(sorted(SPACES)))
def test_going_round_two_spaces_changes_nothing(box, first, second):
    there = geometry.box(geometry.from_unit(box, in_space(first)), in_space(first))
    back = geometry.box(geometry.from_unit(there, FRAME, second), in_space(second))
    assert_allclose(back.xyxy, box.xyxy, atol=1e-12)


@pytest.mark.parametrize(
    "frame", [Frame(space="pixel"), Frame(640, None), Frame(640, 480, "resized")]
)
def test_a_space_in_pixels_without_a_size_is_an_error(frame):
    with pytest.raises(ValueError, match="width and height"):
        geometry.box((1, 2, 3, 4), frame)


def test_a_space_is_never_guessed_from_the_values():
    assert geometry.box((0, 0, 1, 1), Frame(100, 100)).xyxy == (0, 0, 0.01, 0.01)
    with pytest.raises(ValueError, match="expected a space pixel"):
        geometry.extent(Frame(1, 1, space="guess"))


@given(boxes())
def test_corner_order_does_not_matter(box):
    x1, y1, x2, y2 = box.xyxy
    for numbers in [(x2, y1, x1, y2), (x1, y2, x2, y1), (x2, y2, x1, y1)]:
        assert geometry.box(numbers, Frame(space="norm1")) == box


def test_a_box_is_clipped_and_one_without_area_is_none():
    frame = Frame(100, 100)
    assert geometry.box((-50, 10, 50, 1e6), frame).xyxy == (0, 0.1, 0.5, 1)
    assert geometry.box((10, 10, 10, 50), frame) is None
    assert geometry.box((200, 200, 300, 300), frame) is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused(bad):
    with pytest.raises(ValueError, match="finite"):
        geometry.box((0, 0, bad, 1), Frame(1, 1))
    with pytest.raises(ValueError, match="finite"):
        geometry.point(bad, 0, Frame(1, 1))
    with pytest.raises(ValueError, match="finite"):
        geometry.span(0, bad, Frame())


def test_a_point_outside_the_media_is_none():
    assert geometry.point(640, 480, Frame(640, 480)) == Point(1.0, 1.0)
    assert geometry.point(641, 0, Frame(640, 480)) is None


def test_a_span_is_clipped_and_one_that_runs_backwards_is_none():
    assert geometry.span(15, 30, FRAME) == Span(15, 20)
    assert geometry.span(5, 3, FRAME) is None
    assert geometry.span(21, 30, FRAME) is None


def test_iou_of_two_boxes_worked_by_hand():
    assert geometry.iou(Box(0, 0, 0.5, 0.5), Box(0.25, 0.25, 0.75, 0.75)) == pytest.approx(1 / 7)
    assert geometry.iou(Box(0, 0, 0.5, 0.5), Box(0.5, 0, 1, 0.5)) == 0  # they touch


@given(st.lists(boxes(), min_size=1, max_size=5), st.lists(boxes(), min_size=1, max_size=5))
def test_the_matrix_agrees_with_pairs_and_is_symmetric(left, right):
    a, b = geometry.array(left), geometry.array(right)
    matrix = geometry.iou_matrix(a, b)
    assert_allclose(matrix, [[geometry.iou(x, y) for y in right] for x in left], atol=1e-12)
    assert_allclose(geometry.iou_matrix(b, a), matrix.T, atol=1e-12)
    giou = geometry.giou_matrix(a, b)
    assert np.all(giou <= matrix + 1e-12) and np.all(giou > -1)
    ciou = geometry.ciou_matrix(a, b, 4, 3)
    assert np.all(ciou <= matrix + 1e-12) and np.all(ciou > -2)


@given(boxes())
def test_a_box_covers_itself(box):
    a = geometry.array([box])
    assert geometry.iou(box, box) == 1
    assert_allclose([f(a, a)[0, 0] for f in (geometry.giou_matrix, geometry.ciou_matrix)], 1)


def test_giou_and_ciou_of_disjoint_boxes_worked_by_hand():
    a, b = geometry.array([Box(0, 0, 0.2, 0.2)]), geometry.array([Box(0.8, 0, 1, 0.2)])
    # hull 1 x 0.2 = 0.2, union 0.08
    assert geometry.giou_matrix(a, b)[0, 0] == pytest.approx(-(0.2 - 0.08) / 0.2)
    # centres 0.8 apart, diagonal squared 1.04, equal shapes
    assert geometry.ciou_matrix(a, b)[0, 0] == pytest.approx(-0.64 / 1.04)
    # on an image twice as wide the distances stretch with it
    assert geometry.ciou_matrix(a, b, 2, 1)[0, 0] == pytest.approx(-2.56 / 4.04)


def test_ciou_counts_the_difference_of_shapes():
    a, b = geometry.array([Box(0, 0, 0.4, 0.2)]), geometry.array([Box(0.1, -0.1, 0.3, 0.3)])
    v = 4 / math.pi**2 * (math.atan(2) - math.atan(0.5)) ** 2
    iou = 0.04 / (0.16 - 0.04)
    assert geometry.ciou_matrix(a, b)[0, 0] == pytest.approx(iou - v * v / (1 - iou + v))


@given(st.integers(1, 4), st.integers(1, 4), st.randoms(use_true_random=False))
def test_matching_finds_the_largest_sum(rows, columns, random):
    quality = np.array([[random.random() for _ in range(columns)] for _ in range(rows)])
    if rows > columns:
        quality = quality.T
    best = max(
        sum(quality[p, n] for p, n in enumerate(chosen))
        for chosen in itertools.permutations(range(quality.shape[1]), quality.shape[0])
    )
    found = geometry.match(quality)
    assert sum(quality[pair] for pair in found) == pytest.approx(best)
    assert len({p for p, _ in found}) == len({n for _, n in found}) == len(found)


def test_pairs_of_no_quality_do_not_match():
    assert geometry.match(np.array([[0.0, 0.5], [0.0, 0.0]])) == [(0, 1)]


seconds = st.integers(0, 30)
pieces = st.lists(st.tuples(seconds, seconds).filter(lambda t: t[0] < t[1]), min_size=1, max_size=5)


@given(pieces, pieces)
def test_interval_iou_agrees_with_counting_seconds(left, right):
    a, b = ({t for start, end in side for t in range(start, end)} for side in (left, right))
    spans_a, spans_b = ([Span(*t) for t in side] for side in (left, right))
    assert geometry.interval_iou(spans_a, spans_b) == pytest.approx(len(a & b) / len(a | b))


@given(st.lists(spans(), min_size=1, max_size=5))
def test_an_interval_set_covers_itself_in_any_order(items):
    assert geometry.interval_iou(items, items[::-1]) == 1


def test_overlapping_spans_merge_and_nothing_covers_nothing():
    assert geometry.merged([Span(5, 7), Span(0, 3), Span(2, 4)]) == [(0, 4), (5, 7)]
    assert geometry.interval_iou([], []) == 0
    assert geometry.span_iou(Span(0, 10), Span(5, 15)) == pytest.approx(1 / 3)
    assert geometry.span_iou(Span(3, 3), Span(3, 3)) == 1
