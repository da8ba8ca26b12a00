"""One table per item verifier: answers and scores worked by hand."""

import doctest
import importlib
import math

import numpy as np
import pytest

from vlmrl import plugins
from vlmrl.errors import UserError
from vlmrl.schema import Box, Frame, Point, Span, Track, Truth
from vlmrl.verifier import judge

FRAME = Frame(100, 100, duration=100.0)


def verdict(name, answer, truth, template="none", **options):
    return judge(plugins.build("verifier", name, options), answer, truth, template, FRAME)


def score(name, answer, truth, template="none", **options):
    return verdict(name, answer, truth, template, **options).score


def text(*accepted):
    return Truth(text=accepted)


@pytest.mark.parametrize("name", plugins.names("verifier"))
def test_the_examples_in_the_docstrings_hold(name):
    module = importlib.import_module(f"vlmrl.rewards.{name}")
    assert doctest.testmod(module).failed == 0


# ------------------------------------------------------------------------------------- layout

PLAIN = "<think>a</think><answer>B</answer>"
ON_LINES = "<think>\na\n</think>\n<answer>\nB\n</answer>"


@pytest.mark.parametrize(
    ("answer", "options", "wanted"),
    [
        (PLAIN, {}, 1),
        (f"{PLAIN} and more", {}, 0),
        ("<think>a</think>", {"partial": True}, 0.5),
        (PLAIN, {"own_lines": True}, 0),
        (ON_LINES, {"own_lines": True}, 1),
        ("<think>\na\n</think>\n<answer>B</answer>", {"own_lines": True, "partial": True}, 0.5),
        (PLAIN, {"content": "number"}, 0),
        (PLAIN.replace("B", "7"), {"content": "number"}, 1),
        (PLAIN.replace("B", "[1, 2, 3, 4]"), {"content": "boxes"}, 1),
        (PLAIN.replace("B", "[]"), {"content": "boxes"}, 1),
        (PLAIN.replace("B", "(1, 2)"), {"content": "points"}, 1),
        (PLAIN.replace("B", "1 to 2"), {"content": "spans"}, 1),
        (PLAIN.replace("B", '{"a": 1}'), {"content": "json"}, 1),
        (PLAIN, {"content": "json"}, 0),
    ],
)
def test_format(answer, options, wanted):
    assert score("format", answer, Truth(), "think_answer", **options) == wanted


@pytest.mark.parametrize(
    ("answer", "mode", "wanted"),
    [
        (PLAIN, "free", 1),
        ("<think>\n\n</think><answer>B</answer>", "free", 1),
        ("<think>\n\n</think><answer>B</answer>", "no_think", 1),
        ("<think>\n\n</think><answer>B</answer>", "think", 0),
        (PLAIN, "no_think", 0),
        (PLAIN, "think", 1),
        ("<answer>B</answer>", "free", 0),
        ("<think>a<answer>B</answer>", "free", 0),
    ],
)
def test_think_or_not(answer, mode, wanted):
    assert score("think_or_not", answer, Truth(), "think_or_not", mode=mode) == wanted


def test_an_empty_thought_fails_format_but_not_think_or_not():
    empty = "<think></think><answer>B</answer>"
    assert score("format", empty, Truth(), "think_answer") == 0
    assert score("think_or_not", empty, Truth(), "think_answer") == 1


# --------------------------------------------------------------------------- words and numbers


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ("Boeing 747", 1),
        (" boeing  747. ", 1),
        ("Airbus 747", 0),
        ("747", 0),
        ("Boeing 747 400", 0),
    ],
)
def test_exact(answer, wanted):
    assert score("exact", answer, text("Boeing 747", "B747")) == wanted


def test_exact_without_normalising_is_case_sensitive():
    assert score("exact", "boeing 747", text("Boeing 747"), normalise=False) == 0


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [("Passion_Flower", 1), ("passion-flower", 1), ("maypop", 1), ("flower", 0),
     ("passion flower, rose", 0), ("a", 0)],
)  # fmt: skip
def test_class_name(answer, wanted):
    aliases = {"passion flower": ["maypop"]}
    assert score("class_name", answer, text("passion flower"), aliases=aliases) == wanted


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [("B", 1), ("bird", 1), ("(b)", 1), ("A", 0), ("cat", 0), ("A B C", 0), ("B. cat", 0)],
)
@pytest.mark.parametrize("choice", ["B", "bird"])
def test_choice(answer, wanted, choice):
    assert score("choice", answer, Truth(choice=choice, options=("cat", "bird", "cow"))) == wanted


def test_a_choice_without_options_is_a_letter_or_a_text():
    assert score("choice", "It is C.", Truth(choice="C")) == 1
    assert score("choice", "George", Truth(choice="george")) == 1
    with pytest.raises(ValueError, match="none of"):
        score("choice", "A", Truth(choice="dog", options=("cat", "bird")))


def test_yes_no():
    assert score("yes_no", "Yes, there is nothing else.", text("Yes")) == 1
    assert score("yes_no", "Nothing.", text("no")) == 0
    assert score("yes_no", "yes no", text("no")) == 0
    with pytest.raises(ValueError, match="neither"):
        score("yes_no", "yes", text("perhaps"))


@pytest.mark.parametrize(
    ("answer", "options", "wanted"),
    [
        ("a, b", {}, 1),
        ("a", {}, 2 / 3),
        ("a, b, c, d", {}, 2 / 3),
        ("a, c", {"measure": "jaccard"}, 1 / 3),
        ("a, c", {"fatal": True}, 0),
        ("a", {"measure": "exact"}, 0),
        ("a", {"measure": "exact", "subset_credit": 0.5}, 0.5),
        ("a, c", {"measure": "exact", "subset_credit": 0.5}, 0),
        ("a", {"measure": "recall", "fatal": True}, 0.5),
        ("b, a, B", {}, 1),
        ("ab", {}, 0),
    ],
)
def test_labels(answer, options, wanted):
    assert score("labels", answer, Truth(labels=("A", "B")), **options) == pytest.approx(wanted)


def test_the_negative_class_pays_its_own_credit():
    options = {
        "measure": "recall",
        "fatal": True,
        "negative": "No Finding",
        "negative_credit": 0.25,
    }
    assert score("labels", "no finding", Truth(labels=("No Finding",)), **options) == 0.25
    assert score("labels", "no finding, edema", Truth(labels=("Edema",)), **options) == 0


def test_recall_alone_is_refused():
    with pytest.raises(UserError, match="naming everything"):
        plugins.build("verifier", "labels", {"measure": "recall"})


@pytest.mark.parametrize(
    ("answer", "options", "wanted"),
    [
        ("3", {}, 1),
        ("three", {}, 1),
        ("3.004", {}, 0),
        ("3.004", {"decimals": 2}, 1),
        ("3.5", {"tolerance": 0.5}, 1),
        ("3.2", {"relative": 0.1}, 1),
        ("3.4", {"relative": 0.1}, 0),
        ("300%", {"percent": True}, 1),
        ("2 3 4", {}, 0),
        ("٣", {}, 0),
        ("1e999", {}, 0),
    ],
)
def test_number(answer, options, wanted):
    assert score("number", answer, Truth(number=3), **options) == wanted


@pytest.mark.parametrize(
    ("answer", "strict", "graded"),
    [("4", 1, 1), ("three", 0, 0.75), ("8", 0, 0), ("400", 0, 0), ("-4", 0, 0), ("4.5", 0, 0)],
)
def test_count(answer, strict, graded):
    assert score("count", answer, Truth(number=4)) == strict
    assert score("count", answer, Truth(number=4), graded=True) == graded


def test_counting_nothing():
    assert score("count", "0", Truth(number=0)) == 1
    assert score("count", "1", Truth(number=0), graded=True) == 0


@pytest.mark.parametrize(
    ("measure", "answer", "wanted"),
    [
        ("relative", "15", 0.75),
        ("relative", "50", 0),
        ("symmetric", "40", 0.5),
        ("absolute", "20.07", 0.8),
        ("step", "20.3", 1),
        ("step", "20.35", 0),
        ("mra", "20", 1),
        ("mra", "22", 0.8),  # error 0.1: below 1 - t for t = 0.5 ... 0.85
        ("mra", "30", 0),
    ],
)
def test_regression(measure, answer, wanted):
    assert score("regression", answer, Truth(number=20), measure=measure) == pytest.approx(wanted)


def test_regression_reads_a_key_of_a_json_object():
    options = {"measure": "step", "key": "rating"}
    assert score("regression", '{"rating": 3.1, "of": 5}', Truth(number=3), **options) == 1
    assert score("regression", "3.1", Truth(number=3), **options) == 0
    assert score("regression", "0", Truth(number=0)) == 1
    assert score("regression", "1", Truth(number=0)) == 0


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [("1/2", 1), ("0.5", 1), ("\\boxed{\\frac{1}{2}}", 1), ("$\\frac{1}{2}$", 1), ("x = 1/2", 1),
     ("0.5 kg", 1), ("It is 1/2", 1), ("1/3", 0), ("0.5 or 0.6", 0), ("1/3 = 1/2", 0),
     ("\\boxed{1} \\boxed{1/2}", 0), ("hello", 0)],
)  # fmt: skip
def test_math(answer, wanted):
    pytest.importorskip("math_verify")
    assert score("math", answer, text("1/2")) == wanted


def test_a_truth_that_is_no_mathematics_is_a_fault_of_the_data():
    pytest.importorskip("math_verify")
    with pytest.raises(ValueError, match="no expression"):
        score("math", "1", text("$$"))


# ------------------------------------------------------------------------------------- places

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


def test_evidence_is_read_from_its_own_tag():
    truth = Truth(spans=(Span(0, 2), Span(4, 6)))
    said = "<think>a</think><answer>B</answer><glue>[(0, 2), (4, 5)]</glue>"
    assert score("temporal_iou", said, truth, "think_answer_glue", where="glue") == 0.75
    missing = "<think>a</think><answer>B</answer>"
    assert score("temporal_iou", missing, truth, "think_answer_glue", where="glue") == 0


HERE, THERE = Box(0, 0, 0.5, 0.5), Box(0.5, 0.5, 1, 1)
TRACK = Truth(track=Track((0.0, 1.0, 2.0, 3.0), (HERE, HERE, THERE, THERE)))


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


# --------------------------------------------------------------------------------------- text


@pytest.mark.parametrize(
    ("answer", "options", "wanted"),
    [
        ("EXIT", {}, 1),
        ("exit", {}, 1),
        ("exit", {"ignore_case": False}, 0),
        ("EX1T", {}, 0.75),
        ("ＥＸＩＴ", {}, 1),
        ("EXIT " * 50, {}, 0),
        ("EXIT", {"measure": "anls"}, 1),
        ("EXITED", {"measure": "anls"}, 1 - 2 / 6),
        ("EXITEDXX", {"measure": "anls"}, 0.5),
        ("EXITEDXXX", {"measure": "anls"}, 0),
        ("EXITEDXXX", {"measure": "anls", "cut": 0.0}, 1 - 5 / 9),
        ("EX1T", {"measure": "exact"}, 0),
    ],
)
def test_ocr(answer, options, wanted):
    assert score("ocr", answer, text("EXIT", "WAY OUT"), **options) == pytest.approx(wanted)


def test_word_errors_count_words():
    truth = text("the way out")
    assert score("ocr", "the way in", truth, measure="wer") == pytest.approx(2 / 3)
    assert score("ocr", "the long way out", truth, measure="wer") == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("answer", "measure", "wanted"),
    [
        ("Don't go, there!", "wer", 1),
        ("don’t go", "wer", 2 / 3),
        ("dont go there", "wer", 2 / 3),
        ("dont go there", "cer", 1 - 1 / 14),
        ("a b c d e f g h", "wer", 0),
    ],
)
def test_asr(answer, measure, wanted):
    assert score("asr", answer, text("don't go there"), measure=measure) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("measure", "wanted"),
    [
        ("rouge1", 2 * 5 / 12),
        ("rouge2", 2 * 3 / 10),
        ("rougeL", 2 * 5 / 12),
        ("rouge", (10 / 12 + 6 / 10 + 10 / 12) / 3),
        ("token_f1", 2 * 3 / 8),
        # precisions 5/6, 3/5, 1/4, then 1/(2*3) by smoothing
        ("bleu", (5 / 6 * 3 / 5 * 1 / 4 * 1 / 6) ** 0.25),
    ],
)
def test_text_measures_worked_by_hand(measure, wanted):
    truth = text("The cat sat on the mat.")
    assert score("text", "the cat is on the mat", truth, measure=measure) == pytest.approx(wanted)


def test_bleu_charges_brevity_and_knows_several_references():
    short = score("text", "the cat sat on", text("the cat sat on the mat"), measure="bleu")
    assert short == pytest.approx(math.exp(1 - 6 / 4))
    both = text("a cat sat on the mat", "the cat sat upon a mat")
    assert score("text", "the cat sat on the mat", both, measure="bleu") > 0.8
    assert score("text", "dog", text("cat"), measure="bleu") == 0


def test_bmas_with_vectors(tmp_path):
    path = tmp_path / "vectors.npz"
    vectors = np.array([[1.0, 0.0], [0.6, 0.8], [-1.0, 0.0]])
    np.savez(path, words=np.array(["car", "auto", "stone"]), vectors=vectors)
    options = {"vectors": str(path)}
    assert score("bmas", "auto", text("car"), **options) == pytest.approx(0.6)
    assert score("bmas", "stone", text("car"), **options) == 0
    assert score("bmas", "auto auto", text("car"), **options) == pytest.approx(0.3)
    assert score("bmas", "unknown", text("unknown"), **options) == 1
    with pytest.raises(UserError, match="with words"):
        score("bmas", "car", text("auto"), vectors=str(tmp_path / "absent.npz"))


@pytest.mark.parametrize(
    ("accepted", "answer", "wanted"),
    [
        ("1200", "1,240", 1),
        ("1200", "1,270", 0),
        ("$5", "5", 1),
        ("12%", "12", 1),
        ("12%", "0.12", 0),
        ("2019", "2010", 0),
        ("2019", "2019.", 1),
        ("Otago United", "otago united", 1),
        ("Otago United", "Otago", 0),
        ("0", "0.0", 1),
        ("-3.5", "3.5", 0),
        ("100", "99 100 101", 0),
    ],
)
def test_chart(accepted, answer, wanted):
    assert score("chart", answer, text(accepted)) == wanted


def test_refusal():
    none, some = Truth(none=True), text("4")
    assert score("refusal", "\\boxed{I don’t know.}", none, "boxed") == 1
    assert score("refusal", "4", none) == 0
    assert score("refusal", "I don't know", some) == 0
    assert score("refusal", "I don't know, perhaps 4", none) == 0
    assert not verdict("refusal", "4", some).applies


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ('{"distortion_class": "Noise", "severity": "slight"}', 1),
        ('{"distortion_class": "noise", "severity": "serious"}', 0.25),
        ('{"distortion_class": "blur", "severity": "slight"}', 0),
        ('{"distortion_class": ["noise", "blur"], "severity": "slight"}', 0),
        ('{"distortion_class": "noise"} {"distortion_class": "blur"}', 0),
        ("noise, slight", 0),
    ],
)
def test_q_insight_fields_gate_each_other(answer, wanted):
    truth = Truth(fields={"distortion_class": "noise", "severity": "slight"})
    weights = {"distortion_class": 0.25, "severity": 0.75}
    assert score("json_fields", answer, truth, weights=weights, ordered=True) == wanted


def test_fields_are_compared_by_their_kind():
    truth = Truth(fields={"a": 1, "b": True, "c": None})
    assert score("json_fields", '{"a": 1.0, "b": true, "c": null}', truth) == 1
    assert score("json_fields", '{"a": true, "b": 1, "c": ""}', truth) == 0


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ("{'action': 'CLICK', 'value': None, 'position': [25, 50]}", 1),
        ('{"action": "click", "position": [75, 50]}', 0.5),
        ('{"action": "click"}', 0.5),
        ('{"action": "type", "position": [25, 50]}', 0),
        ('{"action": "click", "position": [NaN, 50]}', 0),
        ('{"action": ["click"], "position": [25, 50]}', 0),
        ("click(25, 50)", 0),
    ],
)
def test_gui_action(answer, wanted):
    truth = Truth(fields={"action": "click"}, boxes=LEFT.boxes)
    assert score("gui_action", answer, truth) == wanted


def test_typed_text_and_bare_actions():
    typing = Truth(fields={"action": "type"}, text=("hello world",))
    assert score("gui_action", '{"action": "TYPE", "value": "Hello World"}', typing) == 1
    assert score("gui_action", '{"action": "TYPE", "value": "bye"}', typing) == 0.5
    assert (
        score("gui_action", '{"action": "Press Home"}', Truth(fields={"action": "PRESS HOME"})) == 1
    )


@pytest.mark.parametrize(
    ("answer", "options", "wanted"),
    [
        ("p1\np2", {}, 1),
        ("x, p1, p2", {}, (1 / math.log2(3) + 0.5) / (1 + 1 / math.log2(3))),
        ("p1, p1, p1", {}, 1 / (1 + 1 / math.log2(3))),
        ("x, y, p1", {"top": 2}, 0),
        ('["p2", "p1"]', {"top": 1}, 1),
    ],
)
def test_ndcg(answer, options, wanted):
    truth = Truth(labels=("p1", "p2"))
    assert score("ndcg", answer, truth, **options) == pytest.approx(wanted)


def test_repetition():
    assert score("repetition", "a b a b a b a", Truth(), size=2) == pytest.approx(2 / 6)
    assert score("repetition", "[[0, 0, 9, 9], [0, 0, 9, 9]]", Truth(), unit="boxes") == 0.5


def test_calibration_orders_confidence_and_correctness():
    def stated(answer, confidence, **options):
        said = f"<think>a</think><answer>{answer}</answer><confidence>{confidence}</confidence>"
        return score("calibration", said, text("cat"), "think_answer", **options)

    for options in ({}, {"form": "log"}):
        right = [stated("cat", p, **options) for p in ("0", "0.5", "90%", "1.0")]
        wrong = [stated("dog", p, **options) for p in ("0", "0.5", "90%", "1.0")]
        assert right == sorted(right) and wrong == sorted(wrong, reverse=True)
        assert right[-1] == 1 and wrong[-1] == 0 and min(right) >= max(wrong)
    # Prompt4Trust: ln 0.9 = -0.105 and ln 0.1 - 1 = -3.303
    assert stated("cat", "0.9", form="log") == pytest.approx(1 - 0.10536 / 10, abs=1e-5)
    assert stated("dog", "0.9", form="log") == pytest.approx((5 - 3.30259) / 10, abs=1e-5)
    # Without a confidence the answer is taken for certain.
    assert score("calibration", "dog", text("cat")) == 0


@pytest.mark.parametrize(("words", "wanted"), [(16384, 0), (18432, -0.5), (20480, -1), (20481, -1)])
def test_dapo_overlong_penalty(words, wanted):
    answer = "a " * words
    assert score("length_overlong", answer, Truth(), limit=20480, buffer=4096) == wanted
