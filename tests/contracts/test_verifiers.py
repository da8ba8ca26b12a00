"""What must hold of every verifier, whatever the text: one test per law, over all of them.

A verifier says in `laws` (`vlmrl/scoring/verifier.py`) on which truths and options it is tested.
`VLMRL_NIGHTLY=1` runs 100,000 examples of each law and verifier.
"""

import doctest
import importlib
import json
import math
import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.contracts import require
from helpers.hostile_text import hostile, law
from helpers.truth_shapes import FRAME, SHAPES, truths_of, with_junk
from vlmrl import plugins
from vlmrl.answers import templates
from vlmrl.schema import Sample, Truth
from vlmrl.scoring.verifier import Verifier, judge, judge_group

KIND = "verifier"


def _is_item(cls):
    return cls.scope == "item" and not cls.waits and not cls.laws.of_turns


SUBSETS = {
    "part": lambda cls: True,
    "item": _is_item,
    "quick": lambda cls: _is_item(cls) and not cls.slow,
    "lister": lambda cls: _is_item(cls) and cls.laws.any_order,
    "finder": lambda cls: (
        _is_item(cls) and cls.laws.any_order and {"boxes", "points", "masks"} & {*_shapes(cls)}
    ),
    "needy": lambda cls: _is_item(cls) and cls.needs and not cls.slow,
    "group": lambda cls: cls.scope == "group" and not cls.waits,
    "batch": lambda cls: cls.scope == "batch",
}
"""Fixture -> the verifiers it stands for. One that `waits` asks a network: it has tests of its own."""


def _shapes(cls):
    return cls.laws.truth or cls.needs[:1]


def build(name, options):
    return plugins.build("verifier", name, options)


def load(name):
    return plugins.load("verifier", name)


def score(verifier, answer, truth):
    """The score of an answer in the template of its laws, checked against the verifier's range."""
    try:
        verdict = judge(verifier, answer, truth, verifier.laws.template, FRAME)
    except Exception as error:
        raise AssertionError(
            f"{type(verifier).__name__} raised {error!r} on the answer {answer!r:.200} to {truth}: "
            "grade any text, and name in `laws` (truth=...) which truths suit the verifier"
        ) from error
    assert verdict.fault is None
    if not verdict.applies:
        return None
    assert isinstance(verdict.score, int | float) and not isinstance(verdict.score, bool)
    assert math.isfinite(verdict.score)
    assert verifier.low - 1e-9 <= verdict.score <= verifier.high + 1e-9
    assert all(math.isfinite(value) for value in verdict.parts.values())
    return verdict.score


# ---------------------------------------------------------------------- what the file must hold


def test_it_is_a_verifier_with_laws_that_can_be_tested(part, loaded):
    require(issubclass(loaded, Verifier), part, "derive it from AnswerVerifier or another base")
    unknown = sorted({*_shapes(loaded)} - {*SHAPES})
    known = ", ".join(SHAPES)
    require(not unknown, part, f"laws: no truths of shape {unknown}; name some of {known}")
    require(loaded.low < loaded.high, part, "low and high are the range of the score")
    stated = loaded.needs or loaded.laws.truth or loaded.laws.best or not _is_item(loaded)
    require(
        stated, part, "say which truth it `needs`, or the answer that scores best: Laws(best=...)"
    )
    for options in (*loaded.laws.options, *loaded.laws.loose) if not loaded.waits else ():
        build(part, options)


def test_its_docstring_says_what_its_page_is_made_of(part, loaded):
    doc = loaded.__doc__ or ""
    if not loaded.waits:
        example = "end the docstring with `Example:` and lines such as `>>> judge(...).score`"
        require("Example" in doc and (">>>" in doc or loaded.slow), part, example)
    used = (
        "say in the docstring who uses it: `Used by: VLM-R1 (option: value).`, or `Used by: ours.`"
    )
    require(re.search(r"(Used by|Published sets):", doc), part, used)
    source = "say in the docstring where it is from: `Source: <paper>, arXiv <id>, eq. <n>.`"
    require("Source:" in doc or "Used by: ours" in doc, part, source)


def test_the_examples_in_its_docstring_hold(part, loaded):
    assert doctest.testmod(importlib.import_module(loaded.__module__)).failed == 0


def test_verifiers_import_without_torch():
    names = [name for name in plugins.names("verifier") if not load(name).waits]
    code = (
        "import sys; from vlmrl import plugins; "
        f"[plugins.build('verifier', n) for n in {names!r}]; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ----------------------------------------------------------------------------- one completion


@pytest.mark.slow
@law
@given(data=st.data())
def test_any_text_gives_a_finite_score_in_range_and_the_same_one_twice(quick, data):
    laws = load(quick).laws
    verifier = build(quick, data.draw(st.sampled_from(laws.options + laws.loose)))
    truth, best = data.draw(truths_of(verifier))
    cut = data.draw(st.integers(0, len(best)))
    text = data.draw(st.sampled_from([best[:cut] + "{}" + best[cut:], "{}"]))
    text = text.replace("{}", data.draw(hostile))
    assert score(verifier, text, truth) == score(verifier, text, truth)


@pytest.mark.slow
@law
@given(data=st.data())
def test_the_best_answer_scores_the_best_and_junk_never_raises_it(quick, data):
    options = data.draw(st.sampled_from(load(quick).laws.options))
    verifier = build(quick, options)
    truth, best = data.draw(truths_of(verifier))
    paid = score(verifier, best, truth)
    if options.get("negative_credit") is None:
        assert paid == pytest.approx(verifier.high)
    assert score(verifier, with_junk(verifier.laws, best), truth) <= paid + 1e-9


@pytest.mark.slow
@law
@given(data=st.data())
def test_the_order_of_what_is_listed_changes_nothing(lister, data):
    verifier = build(lister, data.draw(st.sampled_from(load(lister).laws.options)))
    truth, best = data.draw(truths_of(verifier))
    listed = json.loads(data.draw(truths_of(verifier))[1]) + json.loads(best)
    listed = data.draw(st.lists(st.sampled_from(listed), min_size=1, max_size=8))
    first = score(verifier, json.dumps(listed), truth)
    again = score(verifier, json.dumps(data.draw(st.permutations(listed))), truth)
    assert again == pytest.approx(first, abs=1e-9)


@pytest.mark.slow
@law
@given(data=st.data())
def test_saying_it_again_never_pays_where_there_is_one_thing_to_find(finder, data):
    verifier = build(finder, data.draw(st.sampled_from(load(finder).laws.options)))
    truth, _ = data.draw(truths_of(verifier))
    listed = json.loads(data.draw(truths_of(verifier))[1])
    one = Truth(
        *(value and value[:1] for value in (truth.boxes, truth.points)),
        masks=truth.masks and truth.masks[:1],
    )
    first = score(verifier, json.dumps(listed), one)
    for more in (listed[:1], listed, listed * 20):
        assert score(verifier, json.dumps(listed + more), one) <= first + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("text", ["", " \n", "<think>7</think>", "<think>7", "<answer></answer>"])
def test_no_answer_scores_nothing(quick, text):
    laws, (truth, _) = load(quick).laws, _some(load(quick))
    template = laws.template if laws.template != "none" else "think_answer"
    for options in laws.options + laws.loose:
        verdict = judge(build(quick, options), text, truth, template, FRAME)
        if quick == "format" and options.get("partial"):
            assert verdict.score <= 0.5  # it pays for the tags that are there
        else:
            assert verdict.score == 0


def test_the_answer_in_the_thought_is_never_graded(quick):
    laws, (truth, best) = load(quick).laws, _some(load(quick))
    if laws.template != "none" or not _shapes(load(quick)):
        return  # it grades the whole text
    for options in laws.options:
        text = f"<think>{best}</think><answer>zzzz</answer>"
        assert judge(build(quick, options), text, truth, "think_answer", FRAME).score < 1


def test_where_nothing_is_right_only_an_explicit_nothing_is_paid(needy):
    verifier, none = build(needy, {}), Truth(none=True)
    _, best = _some(load(needy))
    for text, paid in [("[]", 1), ("none", 1), ("", 0), (best, 0), ("[[]]", 0)]:
        assert judge(verifier, text, none, "none", FRAME).score == paid


def test_a_verifier_does_not_apply_to_a_truth_it_cannot_judge(needy):
    assert not judge(build(needy, {}), "7", Truth(), "none", FRAME).applies


def test_nothing_said_outright_is_not_paid_where_there_is_something(needy):
    truth, _ = _some(load(needy))
    if any((truth.boxes, truth.points, truth.spans, truth.track, truth.masks)):
        assert judge(build(needy, {}), "[]", truth, "none", FRAME).score == 0


def _some(verifier):
    """One truth that suits a verifier and its best answer, always the same."""
    found = []

    @settings(max_examples=1, database=None, derandomize=True, deadline=None)
    @given(truths_of(verifier))
    def draw(drawn):
        found.append(drawn)

    draw()
    return found[0]


# ----------------------------------------------------------------------------- groups, batches

rewards = st.lists(st.none() | st.sampled_from([0.0, 0.3, 1.0]), min_size=1, max_size=6)


@pytest.mark.slow
@law
@given(data=st.data())
def test_group_verdicts_are_bounded_and_follow_their_completions(group, data):
    verifier = build(group, data.draw(st.sampled_from(load(group).laws.options)))
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


@pytest.mark.slow
@law
@given(data=st.data())
def test_batch_verdicts_are_bounded_and_follow_their_groups(batch, data):
    verifier = build(batch, data.draw(st.sampled_from(load(batch).laws.options)))
    truths = data.draw(st.lists(truths_of(verifier), min_size=1, max_size=4))
    size = data.draw(st.integers(1, 4))
    samples = [
        Sample(f"s{p}", data.draw(st.sampled_from(["a", "b"])), (), truth)
        for p, (truth, _) in enumerate(truths)
    ]
    groups = [
        [templates.completion(data.draw(hostile), "none", FRAME) for _ in range(size)]
        for _ in samples
    ]
    first = verifier.judge(groups, samples)
    assert [len(row) for row in first] == [size] * len(samples)
    for verdict in (verdict for row in first for verdict in row):
        if verdict.applies:
            assert verifier.low - 1e-9 <= verdict.score <= verifier.high + 1e-9
    backwards = verifier.judge([g[::-1] for g in groups][::-1], samples[::-1])[::-1]
    for ours, theirs in zip(first, backwards, strict=True):
        for a, b in zip(ours, theirs[::-1], strict=True):
            assert a.applies == b.applies
            assert a.score == pytest.approx(b.score, abs=1e-9)
