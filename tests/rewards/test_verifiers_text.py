"""Verifiers of texts, fields and actions: answers and scores worked by hand."""

import math

import numpy as np
import pytest

from vlmrl import plugins
from vlmrl.errors import UserError
from vlmrl.schema import Box, Frame, Truth
from vlmrl.scoring.verifier import judge

FRAME = Frame(100, 100, duration=100.0)


def verdict(name, answer, truth, template="none", **options):
    return judge(plugins.build("verifier", name, options), answer, truth, template, FRAME)


def score(name, answer, truth, template="none", **options):
    return verdict(name, answer, truth, template, **options).score


def text(*accepted):
    return Truth(text=accepted)


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


def test_the_right_refusal_is_right_to_every_verifier_however_the_row_states_it():
    declared, written = Truth(none=True), text("I don't know")
    for truth in (declared, written):
        assert score("refusal", "I don't know.", truth) == 1
        assert score("exact", "I don't know.", truth) == 1
        assert score("refusal", "4", truth) == score("exact", "4", truth) == 0
    assert score("refusal", "none", declared) == score("exact", "none", declared) == 1
    assert score("detection", "I don't know", declared) == 0  # "nothing there" is what is right
    assert score("detection", "[]", declared) == 1


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
    truth = Truth(fields={"action": "click"}, boxes=(Box(0, 0, 0.5, 1),))
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
        ("x, p1, p2", {}, 1 / math.log2(3) / (1 + 1 / math.log2(3))),
        ("x, p1, p2", {"top": "all"}, (1 / math.log2(3) + 0.5) / (1 + 1 / math.log2(3))),
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


def test_naming_the_whole_vocabulary_earns_nothing():
    pages = ", ".join(f"p{i}" for i in range(100))
    assert score("ndcg", pages, Truth(labels=("p40", "p41"))) == 0
    assert score("ndcg", pages, Truth(labels=("p40", "p41")), top="all") > 0.2
    findings = ", ".join(f"f{i}" for i in range(10))
    for measure in ("f1", "jaccard"):
        assert score("labels", findings, Truth(labels=("f1", "f2")), measure=measure) == 0
    assert score("labels", findings, Truth(labels=("f1", "f2")), mostly_wrong=True) == 1 / 3
    assert score("labels", "f1, f2, f3", Truth(labels=("f1", "f2"))) == 0.8


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ("3, 1, 2, 5, 4", 1),
        ("[3, 1, 2, 5, 4]", 1),
        ("3,1,2,4,5", 0.2 * 3 / 5),
        ("1, 2, 3, 4, 5", 0),
        ("3, 1, 2, 5", 0),
        ("3, 1, 2, 5, 5", 0),
        ("3, 1, 2, 5, 4, 4", 0),
        ("3, 1, 2, 5, 6", 0),
        ("[3, 1, 2, 5, 4] [3, 1, 2, 4, 5]", 0),
        ("3, 1, 2, 5, 4?", 0),
        ("3 1 2 5 4", 0),
    ],
)
def test_order(answer, wanted):
    truth = Truth(more={"order": ("3", "1", "2", "5", "4")})
    assert score("order", answer, truth) == pytest.approx(wanted)
    whole = score("order", answer, truth, discount=1.0)
    assert whole == pytest.approx(1 if wanted == 1 else 5 * wanted)
