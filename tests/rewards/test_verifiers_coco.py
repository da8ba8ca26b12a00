"""mAP, AP50 and AP75 against pycocotools, and the detection measures worked by hand."""

import contextlib
import io
import itertools
import json
import random

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from vlmrl import plugins
from vlmrl.answers.average_precision import average_precision
from vlmrl.answers.geometry import iou_matrix, pairs
from vlmrl.schema import Box, Frame, Truth
from vlmrl.scoring.verifier import judge


def cocoeval(boxes, labels, scores, true_boxes, true_labels):
    """mAP, AP50 and AP75 of one image by pycocotools."""

    def rows(some, names):
        return [
            {
                "id": i + 1,
                "image_id": 1,
                "category_id": name,
                "bbox": [x1, y1, x2 - x1, y2 - y1],
                "area": (x2 - x1) * (y2 - y1),
                "iscrowd": 0,
            }
            for i, ((x1, y1, x2, y2), name) in enumerate(zip(some.tolist(), names, strict=True))
        ]

    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = {
            "images": [{"id": 1}],
            "categories": [{"id": name} for name in sorted(set(true_labels) | set(labels))],
            "annotations": rows(true_boxes, true_labels),
        }
        truth.createIndex()
        found = [r | {"score": s} for r, s in zip(rows(boxes, labels), scores, strict=True)]
        evaluation = COCOeval(truth, truth.loadRes(found), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.stats[:3]


def random_set(seed):
    """Whole-pixel boxes near random truths, of up to three classes, with ties among the scores."""
    rng = np.random.default_rng(seed)
    num_true, num_found = int(rng.integers(1, 13)), int(rng.integers(1, 16))

    def random_boxes(num):
        low = rng.integers(0, 80, (num, 2))
        return np.hstack([low, low + rng.integers(4, 21, (num, 2))]).astype(float)

    true_boxes, boxes = random_boxes(num_true), random_boxes(num_found)
    near = rng.integers(0, num_true, num_found)
    moved = true_boxes[near] + rng.integers(-3, 4, (num_found, 4))
    good = (rng.random(num_found) < 0.7) & (moved[:, :2] < moved[:, 2:]).all(1)
    boxes[good] = np.clip(moved[good], 0, 100)
    true_labels = rng.integers(1, 4, num_true).tolist()
    labels = [true_labels[n] if rng.random() < 0.8 else int(rng.integers(1, 5)) for n in near]
    scores = rng.choice([0.1, 0.5, 0.9, 1.0], num_found).tolist()
    return boxes, labels, scores, true_boxes, true_labels


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(150))
def test_average_precision_equals_cocoeval(seed):
    boxes, labels, scores, true_boxes, true_labels = random_set(seed)
    ours = average_precision(iou_matrix(boxes, true_boxes), labels, scores, true_labels)
    theirs = cocoeval(boxes, labels, scores, true_boxes, true_labels)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)


def test_more_than_a_hundred_predictions_are_cut_as_in_cocoeval():
    rng = np.random.default_rng(0)
    low = rng.integers(0, 50, (130, 2))
    boxes = np.hstack([low, low + 10]).astype(float)
    true_boxes, scores = boxes[100:110], np.linspace(1, 0.1, 130).tolist()
    ours = average_precision(iou_matrix(boxes, true_boxes), [1] * 130, scores, [1] * 10)
    np.testing.assert_allclose(
        ours, cocoeval(boxes, [1] * 130, scores, true_boxes, [1] * 10), rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("seed", range(40))
def test_the_verifier_gives_the_same_average_precision_from_text(seed):
    boxes, labels, scores, true_boxes, true_labels = random_set(seed)
    answer = json.dumps(
        [
            {"bbox_2d": [int(v) for v in box], "label": f"c{name}", "confidence": score}
            for box, name, score in zip(boxes, labels, scores, strict=True)
        ]
    )
    truth = Truth(
        boxes=tuple(
            Box(*(box / [640, 480, 640, 480]).tolist(), label=f"c{name}")
            for box, name in zip(true_boxes, true_labels, strict=True)
        )
    )
    options = {"weights": {"map": 1.0}, "use_confidence": True}
    verdict = judge(
        plugins.build("verifier", "detection", options), answer, truth, "none", Frame(640, 480)
    )
    wanted = cocoeval(boxes, labels, scores, true_boxes, true_labels)
    found = [verdict.parts[part] for part in ("map", "ap50", "ap75")]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-9)


# ---------------------------------------------------------------------- detection worked by hand

FRAME = Frame(100, 100)
TRUE = Truth(boxes=(Box(0, 0, 0.5, 0.5, "cat"), Box(0.5, 0.5, 1, 1, "dog")))
CAT = {"bbox_2d": [0, 0, 50, 50], "label": "cat"}
DOG = {"bbox_2d": [50, 50, 100, 100], "label": "dog"}
HALF_DOG = {"bbox_2d": [50, 50, 100, 75], "label": "dog"}
NOWHERE = {"bbox_2d": [0, 90, 5, 99], "label": "cat"}


def detect(listed, truth=TRUE, **options):
    answer = listed if isinstance(listed, str) else json.dumps(listed)
    return judge(plugins.build("verifier", "detection", options), answer, truth, "none", FRAME)


def test_the_measures_of_one_hit_one_half_hit_and_one_miss():
    parts = detect([CAT, HALF_DOG, NOWHERE], threshold=0.6).parts
    assert parts == pytest.approx(
        {
            "iou": 1.5 / 3,
            "truth_iou": 1.5 / 2,
            "pair_iou": 1.5 / 2,
            "precision": 1 / 3,
            "recall": 1 / 2,
            "criterion_recall": 1 / 2,
            "f1": 2 / 5,
            "completeness": 1 - (1 / 2 + 2 / 3) / 2,
        }
    )


@pytest.mark.parametrize(
    ("listed", "score"),
    [
        ([CAT, DOG], 1),
        ([DOG, CAT], 1),
        ([CAT], 0.5),
        ([CAT, CAT], 0.5),
        ([CAT, DOG, CAT, DOG], 0.5),
        ([CAT | {"label": "dog"}, DOG | {"label": "cat"}], 0),
        ([CAT, {"bbox_2d": [50, 50, 100, 100]}], 0.5),
        ([{"bbox_2d": [0, 0, 100, 100], "label": "cat"}], 0.125),
        ("[]", 0),
        ("none", 0),
    ],
)
def test_wrong_labels_duplicates_and_giant_boxes_pay_less(listed, score):
    assert detect(listed).score == pytest.approx(score)


def test_a_grid_of_boxes_pays_next_to_nothing():
    grid = [
        {"bbox_2d": [x, y, x + 25, y + 25], "label": name}
        for x in range(0, 100, 25)
        for y in range(0, 100, 25)
        for name in ("cat", "dog")
    ]
    assert detect(grid).score < 0.05


def test_a_label_may_be_left_out_where_all_truths_share_it():
    cats = Truth(boxes=(Box(0, 0, 0.5, 0.5, "cat"), Box(0.5, 0.5, 1, 1, "Cat")))
    assert detect("[[0, 0, 50, 50], [50, 50, 100, 100]]", cats).score == 1
    assert detect("[[0, 0, 50, 50], [50, 50, 100, 100]]").score == 0


def test_published_shapes_multiply_and_cut():
    assert detect([CAT, HALF_DOG], cut=True, threshold=0.6).score == pytest.approx(0.5)
    assert detect([CAT], penalty=0.6).score == pytest.approx(0.5 * 0.6)
    three = [CAT, DOG, NOWHERE]
    assert detect(three, weights={"map": 1.0}, length_factor=True).score == pytest.approx(2 / 3)
    assert detect([CAT, HALF_DOG], threshold=0.5, cut=True, saturate=0.5).score == 1
    assert detect([CAT, HALF_DOG], cut=True, threshold=[0.4, 0.6]).score == pytest.approx(0.625)


def test_v_triune_as_published():
    options = {
        "matching": "label_first",
        "cut": True,
        "weights": {"truth_iou": 0.7, "completeness": 0.3},
        "penalty": 0.6,
    }
    # two truths, one prediction that hits: 0.7 * 1/2 + 0.3 * (1 - (1/2 + 0)/2), times 0.6
    assert detect([CAT], threshold=0.99, **options).score == pytest.approx(0.6 * (0.35 + 0.225))


def test_options_that_would_pay_everything_or_leave_the_range_are_refused():
    from vlmrl.errors import UserError

    for options in (
        {"weights": {}},
        {"weights": {"iou": -1.0}},
        {"penalty": 0.0},
        {"threshold": 2},
    ):
        with pytest.raises(UserError, match="detection"):
            plugins.build("verifier", "detection", options)


def test_truths_without_boxes_are_a_fault_of_the_data():
    with pytest.raises(ValueError, match="declare the truth none"):
        detect([CAT], Truth(boxes=()))


QUALITY = np.array([[0.6, 0.9], [0.0, 0.8], [0.7, 0.0]])


def test_the_four_ways_of_matching_differ_where_they_should():
    scores = [0.1, 0.9, 0.5]
    assert set(pairs(QUALITY, 0.5, "hungarian")) == {(0, 1), (2, 0)}
    assert pairs(QUALITY, 0.5, "greedy_iou") == [(0, 1), (2, 0)]
    assert pairs(QUALITY, 0.5, "greedy_confidence", scores) == [(1, 1), (2, 0)]
    assert pairs(QUALITY, 0.5, "label_first") == [(2, 0), (0, 1)]
    assert pairs(QUALITY, 0.95) == []


def test_hungarian_prefers_more_pairs_to_a_better_one():
    quality = np.array([[1.0, 0.6], [0.6, 0.0]])
    assert set(pairs(quality, 0.5)) == {(0, 1), (1, 0)}


def test_l1_giou_pairs_by_the_least_cost_of_all_permutations():
    """Independent: every permutation, costs of plain numbers (Vision-R1, arXiv 2503.18013)."""
    draw = random.Random(3)

    def box():
        x, y = draw.randint(0, 60), draw.randint(0, 60)
        return [x, y, x + draw.randint(5, 39), y + draw.randint(5, 39)]

    def area(b):
        return max(0, b[2] - b[0]) * max(0, b[3] - b[1])

    def giou(a, b):
        both = area([max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])])
        hull = area([min(a[0], b[0]), min(a[1], b[1]), max(a[2], b[2]), max(a[3], b[3])])
        union = area(a) + area(b) - both
        return both / union - (hull - union) / hull

    differs = 0
    for _ in range(40):
        stated = [(box(), draw.choice(("cat", "dog"))) for _ in range(3)]
        near = [([v + draw.randint(-4, 4) for v in b], name) for b, name in stated]
        right = [([max(0, min(100, v)) for v in b], name) for b, name in near]
        cost = [
            [
                sum(abs(x - y) for x, y in zip(a, b, strict=True)) - (s == r) - giou(a, b)
                for b, r in right
            ]
            for a, s in stated
        ]
        best = min(
            itertools.permutations(range(3)), key=lambda o: sum(cost[p][o[p]] for p in range(3))
        )
        quality = [
            max(0.0, giou(stated[p][0], right[best[p]][0])) * (stated[p][1] == right[best[p]][1])
            for p in range(3)
        ]
        wanted = sum(q for q in quality if q >= 0.5) / 3
        answer = json.dumps([{"bbox_2d": b, "label": name} for b, name in stated])
        truth = Truth(boxes=tuple(Box(*(v / 100 for v in b), name) for b, name in right))
        options = {"quality": "giou", "cut": True, "weights": {"pair_iou": 1.0}, "threshold": 0.5}
        verifier = plugins.build("verifier", "detection", {**options, "matching": "l1_giou"})
        paid = judge(verifier, answer, truth).score
        assert paid == pytest.approx(wanted)
        other = plugins.build("verifier", "detection", options)
        differs += judge(other, answer, truth).score != pytest.approx(wanted)
    assert differs < 40
