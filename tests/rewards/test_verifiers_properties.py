"""What must hold of every verifier, whatever the text: one test per law, over all of them.

`VLMRL_NIGHTLY=1` runs 100,000 examples of each law and verifier.
"""

import json
import math
import os
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.verifier_cases import CASES, FRAME
from vlmrl import plugins
from vlmrl.answers import templates
from vlmrl.schema import Sample, Truth
from vlmrl.scoring.verifier import BatchVerifier, GroupVerifier, judge, judge_group

EXAMPLES = 100_000 if os.environ.get("VLMRL_NIGHTLY") else 60
law = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))

NAMES = plugins.names("verifier")
ELSEWHERE = {"judge"}  # asks an endpoint; tests/rewards/test_judge.py
GROUP = [n for n in NAMES if issubclass(plugins.load("verifier", n), GroupVerifier)]
BATCH = [n for n in NAMES if issubclass(plugins.load("verifier", n), BatchVerifier)]
ITEM = [n for n in NAMES if n not in {*GROUP, *BATCH, *ELSEWHERE}]
EVERY = [n for n in ITEM if n != "math"]  # symbolic work is slow: its law stands at the end

fragments = st.sampled_from(
    ["<think>", "</think>", "<answer>", "</answer>", "[1, 2, 3, 4]", "[[10, 10, 60, 60]]", "[",
     "]", "{", "}", "'", '"', '{"bbox_2d": ', '"label": "cat"', "NaN", "Infinity", "1e999", "-",
     "none", "[]", "yes", "no", "A", "B", "C", "٣", "\n", " ", ",", " 5 to 10 ", "<|box_start|>",
     "(1,2),(3,4)", "\\boxed{", "<confidence>0.3</confidence>", "true", "0", "1", "100", "zzzz",
     "9" * 400, '{"action": "click"}', "I don't know", "[[0, 0, 100, 100]]", "[-1e9, 5, 1e9, 5000]"]
)  # fmt: skip
hostile = st.lists(fragments | st.text(max_size=8), max_size=14).map("".join)


def build(name, options):
    return plugins.build("verifier", name, options)


def score(verifier, case, answer, truth):
    """The score of an answer in the case's template, checked against the verifier's range."""
    verdict = judge(verifier, answer, truth, case.template, FRAME)
    assert verdict.fault is None
    if not verdict.applies:
        return None
    assert isinstance(verdict.score, int | float) and not isinstance(verdict.score, bool)
    assert math.isfinite(verdict.score)
    assert verifier.low - 1e-9 <= verdict.score <= verifier.high + 1e-9
    assert all(math.isfinite(value) for value in verdict.parts.values())
    return verdict.score


def test_every_shipped_verifier_has_a_case():
    assert set(CASES) == set(ITEM)


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
@law
@given(data=st.data())
def test_any_text_gives_a_finite_score_in_range_and_the_same_one_twice(name, data):
    case = CASES[name]
    verifier = build(name, data.draw(st.sampled_from(case.options + case.loose)))
    truth = data.draw(case.truths)
    perfect = case.perfect(truth)
    cut = data.draw(st.integers(0, len(perfect)))
    text = data.draw(st.sampled_from([perfect[:cut] + "{}" + perfect[cut:], "{}"]))
    text = text.replace("{}", data.draw(hostile))
    assert score(verifier, case, text, truth) == score(verifier, case, text, truth)


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
@law
@given(data=st.data())
def test_the_perfect_answer_scores_the_best_and_junk_never_raises_it(name, data):
    case = CASES[name]
    options = data.draw(st.sampled_from(case.options))
    verifier, truth = build(name, options), data.draw(case.truths)
    perfect = case.perfect(truth)
    best = score(verifier, case, perfect, truth)
    if options.get("negative_credit") is None:
        assert best == pytest.approx(verifier.high)
    assert score(verifier, case, case.junk(perfect), truth) <= best + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in ITEM if CASES[n].shuffles])
@law
@given(data=st.data())
def test_the_order_of_what_is_listed_changes_nothing(name, data):
    case = CASES[name]
    verifier, truth = build(name, data.draw(st.sampled_from(case.options))), data.draw(case.truths)
    listed = json.loads(case.perfect(data.draw(case.truths))) + json.loads(case.perfect(truth))
    listed = data.draw(st.lists(st.sampled_from(listed), min_size=1, max_size=8))
    first = score(verifier, case, json.dumps(listed), truth)
    again = score(verifier, case, json.dumps(data.draw(st.permutations(listed))), truth)
    assert again == pytest.approx(first, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["detection", "point", "mask_iou", "confidence"])
@law
@given(data=st.data())
def test_saying_it_again_never_pays_where_there_is_one_thing_to_find(name, data):
    case = CASES[name]
    verifier, truth = build(name, data.draw(st.sampled_from(case.options))), data.draw(case.truths)
    listed = json.loads(case.perfect(data.draw(case.truths)))
    one = Truth(
        *(value and value[:1] for value in (truth.boxes, truth.points)),
        masks=truth.masks and truth.masks[:1],
    )
    first = score(verifier, case, json.dumps(listed), one)
    for more in (listed[:1], listed, listed * 20):
        assert score(verifier, case, json.dumps(listed + more), one) <= first + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("text", ["", " \n", "<think>7</think>", "<think>7", "<answer></answer>"])
def test_no_answer_scores_nothing(name, text):
    case = CASES[name]
    truth = _some(case)
    template = case.template if case.template != "none" else "think_answer"
    for options in case.options + case.loose:
        verdict = judge(build(name, options), text, truth, template, FRAME)
        if name == "format" and options.get("partial"):
            assert verdict.score <= 0.5  # it pays for the tags that are there
        else:
            assert verdict.score == 0


@pytest.mark.parametrize("name", EVERY)
def test_the_answer_in_the_thought_is_never_graded(name):
    case, truth = CASES[name], _some(CASES[name])
    if case.template != "none" or name in ("repetition", "length_overlong"):
        return
    for options in case.options:
        text = f"<think>{case.perfect(truth)}</think><answer>zzzz</answer>"
        assert judge(build(name, options), text, truth, "think_answer", FRAME).score < 1


NEEDY = [n for n in ITEM if plugins.load("verifier", n).needs and n != "math"]


@pytest.mark.parametrize("name", NEEDY)
def test_where_nothing_is_right_only_an_explicit_nothing_is_paid(name):
    verifier, none = build(name, {}), Truth(none=True)
    perfect = CASES[name].perfect(_some(CASES[name]))
    for text, paid in [("[]", 1), ("none", 1), ("", 0), (perfect, 0), ("[[]]", 0)]:
        assert judge(verifier, text, none, "none", FRAME).score == paid


@pytest.mark.parametrize("name", NEEDY)
def test_a_verifier_does_not_apply_to_a_truth_it_cannot_judge(name):
    assert not judge(build(name, {}), "7", Truth(), "none", FRAME).applies


@pytest.mark.parametrize("name", NEEDY)
def test_nothing_said_outright_is_not_paid_where_there_is_something(name):
    truth = _some(CASES[name])
    if name in ("count", "number") or not _finds_places(truth):
        return
    assert judge(build(name, {}), "[]", truth, "none", FRAME).score == 0


def _finds_places(truth):
    return any((truth.boxes, truth.points, truth.spans, truth.track, truth.masks))


def _some(case):
    """One truth of a case, always the same."""
    found = []

    @settings(max_examples=1, database=None, derandomize=True, deadline=None)
    @given(case.truths)
    def draw(truth):
        found.append(truth)

    draw()
    return found[0]


# ----------------------------------------------------------------------------- groups, batches

rewards = st.lists(st.none() | st.sampled_from([0.0, 0.3, 1.0]), min_size=1, max_size=6)
GROUP_OPTIONS = {
    "length_window": [{}, {"shortest": 1, "longest": 3}],
    "length_cosine": [{}, {"right": [0, 0], "wrong": [-0.25, 0], "limit": 4}],
    "length_shortest": [{}, {"floor": 0}],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GROUP)
@law
@given(data=st.data())
def test_group_verdicts_are_bounded_and_follow_their_completions(name, data):
    verifier = build(name, data.draw(st.sampled_from(GROUP_OPTIONS.get(name, [{}]))))
    paid = data.draw(rewards)
    texts = data.draw(st.lists(hostile, min_size=len(paid), max_size=len(paid)))
    meta = {"shuffled_rewards": data.draw(st.lists(st.floats(0, 1), min_size=1, max_size=4))}
    first = judge_group(verifier, texts, paid, meta)
    assert len(first) == len(texts)
    for verdict in first:
        if verdict.applies:
            assert verifier.low - 1e-9 <= verdict.score <= verifier.high + 1e-9
            assert math.isfinite(verdict.score)
    order = data.draw(st.permutations(range(len(texts))))
    again = judge_group(verifier, [texts[i] for i in order], [paid[i] for i in order], meta)
    for place, i in enumerate(order):
        assert again[place].applies == first[i].applies
        assert again[place].score == pytest.approx(first[i].score, abs=1e-9)


@law
@given(data=st.data())
def test_ranks_of_a_batch_are_bounded_and_follow_their_completions(data):
    verifier = build("quality_rank", {})
    shape = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    texts = [[data.draw(hostile) for _ in range(shape[1])] for _ in range(shape[0])]
    samples = [
        Sample(f"s{p}", data.draw(st.sampled_from(["a", "b"])), (), Truth(number=float(p % 3)))
        for p in range(shape[0])
    ]
    groups = [[templates.completion(text, "none", FRAME) for text in group] for group in texts]
    first = verifier.judge(groups, samples)
    for p, sample in enumerate(samples):
        lonely = sum(s.source == sample.source for s in samples) < 2
        for verdict, text in zip(first[p], texts[p], strict=True):
            assert not (lonely and verdict.applies)
            if verdict.applies:
                assert 0 <= verdict.score <= 1
                assert text.strip() or verdict.score == 0
    backwards = verifier.judge([g[::-1] for g in groups][::-1], samples[::-1])
    for p in range(shape[0]):
        mirrored = [v.score for v in backwards[shape[0] - 1 - p][::-1]]
        for ours, theirs in zip([v.score for v in first[p]], mirrored, strict=True):
            assert ours == pytest.approx(theirs, abs=1e-9)


def test_verifiers_import_without_torch():
    code = (
        "import sys; from vlmrl import plugins; "
        f"[plugins.build('verifier', n) for n in {[n for n in NAMES if n not in ELSEWHERE]!r}]; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_docstrings_say_what_docs_are_made_of():
    for name in NAMES:
        if name in ELSEWHERE:
            continue
        doc = plugins.load("verifier", name).__doc__ or ""
        assert "Example" in doc, name
        assert "Used by:" in doc or "Published sets:" in doc, name
        assert "Source:" in doc or "Used by: ours" in doc, name


@settings(max_examples=20, deadline=None)
@given(CASES["math"].truths)
def test_math_pays_the_right_number_and_nothing_else(truth):
    pytest.importorskip("math_verify")
    verifier, perfect = build("math", {}), CASES["math"].perfect(truth)
    assert score(verifier, CASES["math"], perfect, truth) == 1
    for wrong in (f"{perfect}1", f"{perfect}, 7777", f"7777 = {perfect}", f"not {perfect} but 1"):
        assert score(verifier, CASES["math"], wrong, truth) == 0
