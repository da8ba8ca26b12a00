"""Rewards that read the calls that were run, and the published sums that are made of them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from vlmrl import plugins
from vlmrl.answers import templates
from vlmrl.config import RewardConfig, load
from vlmrl.errors import UserError
from vlmrl.features.verify.attack_bench import verify
from vlmrl.schema import Call, Completion, Frame, Sample, Segment, Truth
from vlmrl.scoring.scorer import Scorer

WRITTEN = '<tool_call>{"name": "crop", "arguments": {}}</tool_call>'


def ran(text: str, *calls: Call, template: str = "think_answer") -> Completion:
    """A completion whose first turn made these calls and whose last one is the text."""
    segments = (Segment((1,), (-1.0,), calls=calls), Segment((2,), text=WRITTEN))
    last = templates.completion(text, template, Frame())
    return replace(last, segments=(*segments, Segment((3,), (-1.0,), text=text)))


def score(verifier: str, completion: Completion, truth: Truth, **options: object) -> float | None:
    sample = Sample("s", "s", (), truth, "think_answer")
    return plugins.build("verifier", verifier, options)(completion, sample).score


@pytest.mark.parametrize(
    ("calls", "paid"),
    [
        ((Call("crop", {}),), 1.0),
        ((Call("crop", {}, "refused"), Call("zoom", {})), 1.0),
        ((Call("crop", {}, "refused"),), 0.0),
        ((Call("crop", {}, "fault"),), 0.0),
        ((), 0.0),
    ],
)
def test_a_tool_was_used_where_it_answered_whatever_texts_say(calls, paid):
    assert score("tool_used", ran(f"<answer>{WRITTEN}</answer>", *calls), Truth()) == paid


def test_only_named_tools_count():
    used = ran("a", Call("crop", {}))
    assert score("tool_used", used, Truth(), tools=["search"]) == 0
    assert score("tool_used", used, Truth(), tools=["search", "crop"]) == 1


def test_fewer_calls_than_most_are_paid_their_share():
    calls = (Call("search", {}), Call("crop", {}), Call("search", {}, "refused"))
    paid = [
        score("tool_used", ran("a", *calls[:1] * n, *calls[1:]), Truth(), tools=["search"], most=3)
        for n in range(5)
    ]
    assert paid == pytest.approx([0, 1 / 3, 2 / 3, 1, 1])


def test_a_search_is_paid_by_the_places_of_what_it_found_first():
    right = Truth(labels=("deck_3", "deck_5"))
    two = ran("a", Call("search", {}, found=("deck_9",)), Call("search", {}, found=("deck_5",)))
    assert score("retrieval_ndcg", two, right) == pytest.approx(
        (1 / math.log2(3)) / (1 + 1 / math.log2(3))
    )
    best = ran("a", Call("search", {}, found=("deck_5", "deck_3")))
    assert score("retrieval_ndcg", best, right) == 1
    again = ran("a", *[Call("search", {}, found=("deck_3",))] * 9)
    assert score("retrieval_ndcg", again, right) == pytest.approx(1 / (1 + 1 / math.log2(3)))
    assert score("retrieval_ndcg", ran("deck_3, deck_5"), right) == 0
    assert score("retrieval_ndcg", best, Truth(text=("a",))) is None


def test_no_text_is_an_attack_on_a_verifier_of_calls():
    with pytest.raises(UserError, match="reads what calls did, no text"):
        verify(RewardConfig(verifier="tool_used"))


def totals(recipe: str, source: str, answer: str, truth: Truth, *groups: tuple[Call, ...]):
    """The rewards by a recipe of completions with this answer, one for each tuple of calls."""
    config = load(recipe)
    named = next(one for one in config.data.train if one.label == source)
    sample = Sample("s", source, (), truth, "think_answer")
    text = f"<think>so</think><answer>{answer}</answer>"
    with Scorer({source: config.rewards_of(named)}, config.scoring) as scorer:
        (judged,) = scorer.judge([[ran(text, *calls) for calls in groups]], [sample])
    return [one.reward for one in judged]


def test_deepeyes_pays_a_tool_only_beside_a_right_answer():
    used, refused = (Call("crop", {}),), (Call("crop", {}, "refused"),)
    truth = Truth(text=("left",))
    right = totals("recipes/deepeyes", "visual", "left", truth, used, refused, ())
    assert right == pytest.approx([0.8 + 0.2 + 1.2, 0.8 + 0.2, 0.8 + 0.2])
    wrong = totals("recipes/deepeyes", "visual", "right", truth, used, refused, ())
    assert wrong == pytest.approx([0.2, 0.2, 0.2])


def test_pixel_reasoner_is_curious_where_few_of_a_group_look():
    groups = [(Call("crop", {}),), *[()] * 7]
    paid = totals("recipes/pixel_reasoner", "images", "4", Truth(text=("4",)), *groups)
    bonus = 0.5 * (0.3 - 1 / 8)
    assert paid == pytest.approx([1 + bonus, *[1] * 7])


def test_ikea_pays_less_for_each_search_beside_a_right_answer_and_a_little_beside_a_wrong_one():
    """Independent: the branches of the published code, and 1 more for all."""
    found, truth = Call("search", {}), Truth(text=("1998",))
    groups = [(found,) * n for n in range(5)]
    right = totals("recipes/ikea", "questions", "1998", truth, *groups)
    assert right == pytest.approx([1 + 1 + bonus for bonus in (0.6, 0.4, 0.2, 0, 0)])
    wrong = totals("recipes/ikea", "questions", "1999", truth, *groups)
    assert wrong == pytest.approx([1, *[1.05] * 4])
    unformatted = totals("recipes/ikea", "questions", "1998</answer> so <answer>", truth, *groups)
    assert unformatted == [0] * 5


def test_vrag_pays_a_page_only_beside_an_answer_that_is_near():
    truth = Truth(text=("net income",), labels=("p7",))
    found = (Call("search", {}, found=("p2", "p7")),)
    cropped = (Call("crop", {}),)
    ndcg = 1 / math.log2(3)
    right = totals("recipes/vrag", "pages", "net income", truth, found, cropped, ())
    assert right == pytest.approx([0.7 + 0.1 + 0.2 * ndcg, 0, 0])
    near = 1 - 1 / 10  # one edit of ten characters
    paid = totals("recipes/vrag", "pages", "net incame", truth, found)
    assert paid == pytest.approx([0.1 * near + 0.2 * ndcg])
    assert totals("recipes/vrag", "pages", "sales", truth, found) == [0]
