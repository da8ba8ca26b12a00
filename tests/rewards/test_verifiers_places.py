"""Verifiers of places and times: answers and scores worked by hand."""

import json
import math

import pytest

from vlmrl import plugins
from vlmrl.errors import UserError
from vlmrl.schema import Box, BoxTrack, Frame, Point, Span, Truth
from vlmrl.scoring.verifier import judge

FRAME = Frame(100, 100, duration=100.0)


def verdict(name, answer, truth, template="none", **options):
    return judge(plugins.build("verifier", name, options), answer, truth, template, FRAME)


def score(name, answer, truth, template="none", **options):
    return verdict(name, answer, truth, template, **options).score


def text(*accepted):
    return Truth(text=accepted)


LEFT = Truth(boxes=(Box(0, 0, 0.5, 1, "door"),))


@pytest.mark.parametrize(
    ("answer", "options", "wanted"),
    [
        ('{"bbox_2d": [0, 0, 50, 100]}', {}, 1),
        ('{"bbox_2d": [50, 100, 0, 0]}', {}, 1),
        ('{"bbox_2d": [0, 0, 50, 100], "label": "Door"}', {}, 1),
        ('{"bbox_2d": [0, 0, 50, 100], "label": "dog"}', {}, 0),
        ('{"bbox_2d": [0, 0, 50, 100], "label": "dog"}', {"check_label": False}, 1),
        ("[0, 0, 100, 100]", {}, 0.5),
        ("[-900000, -900000, 900000, 900000]", {}, 0.5),
        ("[50, 0, 100, 100]", {}, 0),
        ("[0, 0, 25, 100]", {"threshold": 0.5}, 0.5),
        ("[0, 0, 24, 100]", {"threshold": 0.5}, 0),
        ("[0, 0, 25, 100]", {"threshold": 0.5, "binary": True}, 1),
        ("[[0, 0, 50, 100], [50, 0, 100, 100]]", {}, 0),
        ("[[0, 0, 50, 100], [50, 0, 100, 100]]", {"several": "first"}, 1),
        ("[50, 0, 100, 100]", {"measure": "giou"}, 0.5),
        ("[0, 0, 100, 100]", {"measure": "giou"}, 0.75),
        ("[NaN, 0, 50, 100]", {}, 0),
        ("[true, 0, 50, 100]", {}, 0),
        ("[]", {}, 0),
    ],
)
def test_box_iou(answer, options, wanted):
    assert score("box_iou", answer, LEFT, **options) == pytest.approx(wanted)


def test_gui_g1_adds_bounded_centre_and_size_terms():
    options = {"iou_weight": 0.25, "centre_weight": 1.0, "size_weight": 0.125}
    assert score("box_iou", "[0, 0, 50, 100]", LEFT, **options) == 1
    # IoU 0.5, centre on the edge of the true box, edges off by 0, 0, 0.5, 0
    wanted = (0.25 * 0.5 + 1 + 0.125 * 4 / (3 + 1 / 0.5)) / 1.375
    assert score("box_iou", "[0, 0, 100, 100]", LEFT, **options) == pytest.approx(wanted)


def test_box_iou_wants_one_true_box_and_sane_options():
    with pytest.raises(ValueError, match="use detection"):
        score("box_iou", "[0, 0, 1, 1]", Truth(boxes=LEFT.boxes * 2))
    for options in ({"binary": True}, {"threshold": 2.0}, {"iou_weight": 0.0}):
        with pytest.raises(UserError, match="box_iou"):
            plugins.build("verifier", "box_iou", options)


@pytest.mark.parametrize(
    ("answer", "options", "wanted"),
    [
        ("(25, 50)", {}, 1),
        ("(75, 50)", {}, 0),
        ("[0, 0, 50, 100]", {}, 1),
        ("(25, 60)", {"measure": "gaussian"}, math.exp(-0.5)),
        ("(25, 64)", {"measure": "distance"}, 1),
        ("(25, 65)", {"measure": "distance"}, 0),
        ("[[25, 50], [75, 50]]", {}, 0.5),
        ("(2500, 50)", {}, 0),
    ],
)
def test_point(answer, options, wanted):
    assert score("point", answer, LEFT, **options) == pytest.approx(wanted)


def test_points_match_points_and_masks():
    two = Truth(points=(Point(0.1, 0.1), Point(0.9, 0.9)))
    assert score("point", "[[90, 90], [10, 10]]", two) == 1
    assert score("point", "[[10, 10], [10, 10]]", two) == 0.5
    triangle = Truth(masks=(((0.0, 0.0), (1.0, 0.0), (0.0, 1.0)),))
    assert score("point", "(20, 20)", triangle) == 1
    assert score("point", "(80, 80)", triangle) == 0
    left = {"size": [2, 2], "counts": [0, 2, 2]}  # column by column: the left half
    assert score("point", "(20, 80)", Truth(masks=(left,))) == 1
    assert score("point", "(80, 80)", Truth(masks=(left,))) == 0
    with pytest.raises(ValueError, match="not masks"):
        score("point", "(20, 20)", triangle, measure="gaussian")


@pytest.mark.parametrize(
    ("answer", "linear", "brier", "published"),
    [
        ('[{"bbox_2d": [0, 0, 50, 100], "confidence": 1}]', 1, 1, 1),
        ('[{"bbox_2d": [0, 0, 50, 100], "confidence": 0.5}]', 0.5, 0.75, 0.5),
        ("[0, 0, 50, 100]", 0, 0, 0),
        ('[{"bbox_2d": [50, 0, 100, 100], "confidence": 0}]', 0, 0, 0),
        (
            '[{"bbox_2d": [0, 0, 50, 100], "confidence": 0.5}, '
            '{"bbox_2d": [50, 0, 100, 100], "confidence": 0}]',
            0.25,
            0.375,
            0.75,
        ),
    ],
)
def test_confidence(answer, linear, brier, published):
    assert score("confidence", answer, LEFT) == pytest.approx(linear)
    assert score("confidence", answer, LEFT, form="brier") == pytest.approx(brier)
    assert score("confidence", answer, LEFT, form="visual_rft") == pytest.approx(published)


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ('{"polygon": [[0, 0], [50, 0], [50, 100], [0, 100]]}', 1),
        ('{"polygon": [0, 0, 50, 0, 50, 100, 0, 100]}', 1),
        ("[0, 0, 100, 100]", 0.5),
        ('[[0, 0, 50, 100], [90, 90, 99, 99]]', 0.5),
        ('{"polygon": [[0, 0], [50, 0]]}', 0),
        ('{"size": [2, 2], "counts": "0;7"}', 0),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "mask",
    [
        ((0.0, 0.0), (0.5, 0.0), (0.5, 1.0), (0.0, 1.0)),
        {"size": [100, 100], "counts": [0, 5000, 5000]},
    ],
)
def test_mask_iou(answer, wanted, mask):
    assert score("mask_iou", answer, Truth(masks=(mask,))) == pytest.approx(wanted, abs=0.02)


def test_masks_of_different_sizes_are_a_fault_of_the_data():
    sizes = ({"size": [2, 2], "counts": [0, 4]}, {"size": [3, 3], "counts": [0, 9]})
    with pytest.raises(ValueError, match="among masks of size"):
        score("mask_iou", "[0, 0, 50, 50]", Truth(masks=sizes))


# -------------------------------------------------------------------------------------- time


@pytest.mark.parametrize(
    ("answer", "options", "wanted"),
    [
        ("10 to 20", {}, 1),
        ("10 to 30", {}, 0.5),
        ("30 to 40", {}, 0),
        ("20 to 10", {}, 0),
        ("10 to 14", {"threshold": 0.5}, 0),
        ("10 to 15", {"threshold": 0.5, "binary": True}, 1),
        ("10 to 12, 18 to 20", {}, 0.4),
        ("10 to 12, 18 to 20", {"union": "hull"}, 1),
        ("99 to 200", {}, 0),
    ],
)
def test_temporal_iou(answer, options, wanted):
    assert score("temporal_iou", answer, Truth(spans=(Span(10, 20),)), **options) == wanted


@pytest.mark.parametrize("start, end", [(10, 20), (12, 18), (0, 30), (15, 40), (30, 40)])
def test_ends_pay_for_being_near_as_in_time_r1(start, end):
    inside = max(0, min(end, 20) - max(start, 10))
    reward = inside / (max(end, 20) - min(start, 10))
    for stated, right in ((start, 10), (end, 20)):
        reward *= 1 - abs(stated - right) / 100
    options = {"union": "hull", "ends": True}
    truth = Truth(spans=(Span(10, 20),))
    assert score("temporal_iou", f"{start} to {end}", truth, **options) == pytest.approx(reward)


def test_ends_need_the_duration():
    verifier = plugins.build("verifier", "temporal_iou", {"ends": True})
    with pytest.raises(ValueError, match="expected the duration of the video"):
        judge(verifier, "1 to 2", Truth(spans=(Span(1, 2),)), frame=Frame())


def test_evidence_is_read_from_its_own_tag():
    truth = Truth(spans=(Span(0, 2), Span(4, 6)))
    said = "<think>a</think><answer>B</answer><glue>[(0, 2), (4, 5)]</glue>"
    assert score("temporal_iou", said, truth, "think_answer_glue", where="glue") == 0.75
    missing = "<think>a</think><answer>B</answer>"
    assert score("temporal_iou", missing, truth, "think_answer_glue", where="glue") == 0


HERE, THERE = Box(0, 0, 0.5, 0.5), Box(0.5, 0.5, 1, 1)
TRACK = Truth(track=BoxTrack((0.0, 1.0, 2.0, 3.0), (HERE, HERE, THERE, THERE)))


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ("[[0,0,50,50],[0,0,50,50],[50,50,100,100],[50,50,100,100]]", 1),
        ("[[0,0,50,50],[0,0,50,50]]", 0.5),
        ("[[0,0,50,50]] " * 8, 0.25),
        ('[{"time": 2, "bbox_2d": [50,50,100,100]}]', 0.25),
        ('[{"time": 2.5, "bbox_2d": [50,50,100,100]}]', 0),
        ("[[0,0,0,0],[0,0,50,50],[50,50,100,100],[50,50,100,100]]", 0.75),
    ],
)
def test_track(answer, wanted):
    assert score("track", answer, TRACK) == wanted


# -------------------------------------------------------------------------------------- events

DOG_AND_RAIN = Truth(spans=(Span(10, 20, "dog"), Span(15, 25, "rain")))


def events(*stated):
    return json.dumps([{"start": s, "end": e, "label": name} for s, e, name in stated])


@pytest.mark.parametrize(
    ("answer", "options", "wanted"),
    [
        (events((15, 25, "Rain."), (10, 20, "DOG")), {}, 1),
        (events((10, 20, "dog")), {}, 0.5),
        (events((10, 20, "dog"), (15, 25, "snow")), {}, 0.5),
        (events((10, 15, "dog"), (15, 25, "rain")), {}, 0.75),
        (events((10, 20, "dog"), (15, 25, "rain"), (10, 20, "dog"), (0, 1, "dog")), {}, 0.5),
        ("10 to 20, 15 to 25", {}, 0),  # which is the dog?
        (events((15, 25, "dog"), (10, 20, "rain")), {}, 1 / 3),
        (events((10.2, 22, "dog"), (14.8, 25, "rain")), {"measure": "event"}, 1),
        (events((10.2, 22.1, "dog"), (14.8, 25, "rain")), {"measure": "event"}, 0.5),
        (events((10.3, 20, "dog")), {"measure": "event"}, 0),
        (events((10.3, 20, "dog")), {"measure": "event", "collar": 0.5}, 2 / 3),
        (events((10.3, 19.5, "dog"), (15, 25, "rain")), {"measure": "segment"}, 1),
        (events((10, 15, "dog"), (15, 25, "rain")), {"measure": "segment"}, 2 * 15 / (15 + 20)),
        (events((10, 12, "dog"), (11, 20, "dog")), {"measure": "segment"}, 2 * 10 / (10 + 20)),
        (events((10, 20, "dog"), (15, 25, "rain")), {"measure": "segment", "resolution": 7}, 1),
        ("[]", {}, 0),
        (events((20, 10, "dog")), {"measure": "segment"}, 0),
    ],
)
def test_events(answer, options, wanted):
    assert score("events", answer, DOG_AND_RAIN, **options) == pytest.approx(wanted)


def test_an_event_without_a_label_is_of_the_only_true_class():
    truth = Truth(spans=(Span(1, 2, "dog"), Span(4, 6, "dog")))
    for measure in ("iou", "event", "segment"):
        assert score("events", "1 to 2, 4 to 6", truth, measure=measure) == 1
    with pytest.raises(ValueError, match="declare the truth none"):
        score("events", "1 to 2", Truth(spans=()))
    for options in ({"collar": -1}, {"end_share": 1}, {"resolution": 0}):
        with pytest.raises(UserError, match="events"):
            plugins.build("verifier", "events", options)


# Random recordings with the overall F-scores that sed_eval 0.2.1 gives (EventBasedMetrics with its
# defaults, SegmentBasedMetrics of 1 s).
SED_EVAL = [
    (
        [(3.4, 3.82, "rain"), (6.3, 6.95, "dog")],
        [(3.1, 3.82, "rain"), (6.02, 7.39, "dog")],
        0.0,
        0.8,
    ),
    (
        [(1.14, 2.8, "car"), (2.9, 4.94, "rain"), (2.85, 3.62, "car"), (5.74, 7.8, "dog")],
        [(2.79, 3.3, "car"), (2.95, 4.72, "rain"), (0.9, 2.79, "car"), (5.79, 7.95, "dog")],
        0.5,
        0.947368,
    ),
    (
        [(0.5, 2.62, "rain"), (3.5, 4.16, "rain"), (7.49, 8.44, "dog")],
        [
            (3.62, 4.34, "rain"), (3.2, 5.4, "rain"), (0.46, 2.67, "rain"), (1.9, 4.82, "rain"),
            (7.33, 8.71, "dog"),
        ],
        0.5,
        0.933333,
    ),
    (
        [
            (6.73, 9.02, "car"), (4.3, 6.61, "dog"), (1.35, 3.69, "rain"), (1.2, 4.13, "car"),
            (5.18, 5.76, "rain"),
        ],
        [
            (1.31, 3.25, "rain"), (6.95, 8.56, "car"), (3.2, 4.3, "car"), (4.34, 6.43, "car"),
            (5.25, 5.71, "rain"), (4.38, 6.96, "rain"), (1.35, 3.88, "car"),
        ],
        0.5,
        0.758621,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("true", "stated", "event", "segment"), SED_EVAL)
def test_event_scores_are_those_of_sed_eval(true, stated, event, segment):
    truth = Truth(spans=tuple(Span(*one) for one in true))
    for measure, wanted in (("event", event), ("segment", segment)):
        assert score("events", events(*stated), truth, measure=measure) == pytest.approx(
            wanted, abs=1e-6
        )
