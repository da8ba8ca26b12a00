"""Rewards that grade the content of a tag: two answers of one completion, and what is not there."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from vlmrl.answers import templates
from vlmrl.config import RewardConfig, ScoringConfig
from vlmrl.errors import UserError
from vlmrl.schema import Completion, Frame, Sample, Tag, Template, Truth
from vlmrl.scoring.reward_components import form_of
from vlmrl.scoring.scorer import Scorer

TWICE = Template((Tag("first"), Tag("think"), Tag("answer")))
ROW = Sample("row", "s", ("How many?",), Truth(text=("7",)), TWICE)
TEXTS = [
    "<first>7</first><think>so</think><answer>7</answer>",
    "<first>8</first><think>so</think><answer>7</answer>",
    "<first>7</first><think>so</think><answer>8</answer>",
    "<think>so</think><answer>7</answer>",
    "<first> </first><think>so</think><answer>7</answer>",
    "<first>7</first><think>so",
    "<think>so</think><first>7</first><answer>7</answer>",
    "7",
    "",
]


def read_slowly(text: str, tag: str) -> str | None:
    """Return a tag's content: the first answer before the thought, the second behind it."""
    if "<think>" in text and "</think>" not in text:
        return None
    before, _, after = text.partition("<think>") if "<think>" in text else (text, "", text)
    part = before if tag == "first" else after.partition("</think>")[2]
    match = re.search(rf"<{tag}>(.*?)</{tag}>", part)
    return (match[1].strip() or None) if match else None


def completions() -> list[Completion]:
    return [templates.completion(text, TWICE, Frame(56, 56)) for text in TEXTS]


@pytest.mark.parametrize("timeout", [None, 30.0])
@pytest.mark.parametrize("early", [False, True])
def test_each_reward_grades_its_own_tag_here_and_in_the_pool(
    timeout: float | None, early: bool
) -> None:
    shared = {"verifier": "exact", "timeout_s": timeout}
    rewards = [
        RewardConfig(**shared, name="second"),
        RewardConfig(**shared, name="first", tag="first", weight=0.25),
    ]
    group = completions()
    with Scorer({"s": rewards}, ScoringConfig()) as scorer:
        if early:
            scorer.begin(SimpleNamespace(sample=ROW, seen=None), group, 0.0)  # type: ignore[arg-type]
        paid = [judged.reward for judged in scorer.judge([group], [ROW])[0]]
    wanted = [
        (read_slowly(text, "answer") == "7") + 0.25 * (read_slowly(text, "first") == "7")
        for text in TEXTS
    ]
    assert paid == wanted == [1.25, 1.0, 0.25, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("reward", "template", "message"),
    [
        ({"tag": "frist"}, TWICE, "has (first, answer), got 'frist'"),
        ({"tag": "think"}, TWICE, "has (first, answer), got 'think'"),
        ({"tag": "first"}, "boxed", "the template boxed has (none), got 'first'"),
    ],
)
def test_a_tag_that_the_template_has_not_is_refused(
    reward: dict[str, str], template: str | Template, message: str
) -> None:
    row = Sample("row", "s", ("How many?",), Truth(text=("7",)), template)
    rewards = [RewardConfig(verifier="exact", **reward)]
    scorer = Scorer({"s": rewards}, ScoringConfig())
    with scorer, pytest.raises(UserError, match=re.escape(message)):
        scorer.judge([[templates.completion("7", template, Frame())]], [row])


def test_a_tag_is_of_single_completions_and_says_nothing_of_the_answers_form() -> None:
    group = RewardConfig(verifier="length_shortest", tag="first")
    with pytest.raises(UserError, match="single completions"):
        Scorer({"s": [RewardConfig(verifier="exact"), group]}, ScoringConfig())
    of_tag = RewardConfig(verifier="labels", tag="first")
    assert form_of([RewardConfig(verifier="exact"), of_tag]).kinds == ("text",)


def test_a_verifier_that_always_hangs_is_at_fault_for_a_tag_too(tmp_path: Path) -> None:
    (place := tmp_path / "hangs.py").write_text("def hangs(answer):\n    while True: pass\n")
    reward = RewardConfig(verifier=f"{place}:hangs", tag="first", timeout_s=1.0)
    with Scorer({"s": [reward]}, ScoringConfig(fault_limit=1.0)) as scorer:
        (judged,) = scorer.judge([completions()[:1]], [ROW])[0]
    assert judged.reward is None and judged.verdicts["hangs"].fault
