"""Which tokens stand in which tag, and advantages that act on the tokens of a tag alone."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.losses import recipe_of, rewards_of, rollouts_of
from vlmrl.answers import templates
from vlmrl.errors import UserError
from vlmrl.parts.strategies.tag_tokens import find
from vlmrl.schema import Completion, Frame, Parsed, Rewards, Rollouts, Verdict

TEXT = "<context>ein Käse 🧀</context>\n<think>so</think><answer>B</answer>"
STOP = -1


def completion(text: str, count: int) -> Completion:
    ids = (*range(count), STOP)
    return templates.completion(
        text, "context_think_answer", Frame(), token_ids=ids, logprobs=(0.0,) * len(ids)
    )


@given(cuts=st.lists(st.integers(0, len(TEXT.encode())), max_size=40))
def test_a_tags_tokens_are_those_that_hold_any_of_it_however_the_text_is_cut(
    cuts: list[int],
) -> None:
    whole = TEXT.encode()
    bounds = sorted({0, len(whole), *cuts})  # tokens of bytes: they cut characters in pieces
    pieces = [whole[a:b] for a, b in itertools.pairwise(bounds)]

    def decode(ids: list[int]) -> str:
        return b"".join(pieces[i] for i in ids).decode("utf-8", "replace")

    found = find(completion(TEXT, len(pieces)), "context_think_answer", {STOP}, decode).tag_tokens
    assert sorted(found) == ["answer", "context", "think"]
    for tag, (start, end) in found.items():
        opened = whole.index(f"<{tag}>".encode())
        closed = whole.index(f"</{tag}>".encode()) + len(f"</{tag}>")
        holding = [
            number
            for number, (a, b) in enumerate(itertools.pairwise(bounds))
            if b > opened and a < closed
        ]
        assert (start, end) == (holding[0], holding[-1] + 1)


def test_a_tag_that_is_never_closed_has_no_tokens_and_a_thought_may_begin_in_the_prompt() -> None:
    text = "so it is</think><answer>B</answer>"
    letters = list(text)
    found = find(
        completion(text, len(letters)),
        "context_think_answer",
        {STOP},
        lambda ids: "".join(letters[i] for i in ids),
    )
    assert found.tag_tokens == {"think": (0, 16), "answer": (16, len(letters))}
    open_thought = completion("<context>a</context><think>b", 5)
    assert find(open_thought, "context_think_answer", {STOP}, str).tag_tokens == {}


# ----------------------------------------------------------------------------------- advantages


def scored(total: list[list[float]], **parts: list[list[float | None]]) -> Rewards:
    """Rewards with the scores of further verifiers; None: that verifier failed."""
    rewards = rewards_of(total)
    verdicts = tuple(
        tuple(
            {
                name: Verdict.failed("down") if rows[p][g] is None else Verdict(rows[p][g])
                for name, rows in parts.items()
            }
            for g in range(len(total[p]))
        )
        for p in range(len(total))
    )
    return replace(rewards, verdicts=verdicts)


def written(rewards: Rewards, tags: list[dict[str, tuple[int, int]]], length: int = 5) -> Rollouts:
    plain = rollouts_of(rewards, length=length)
    group = tuple(replace(plain.completions[0][0], tag_tokens=of_one) for of_one in tags)
    return replace(plain, completions=(group,) * len(plain.completions))


def test_a_spans_advantage_is_added_on_its_own_tokens() -> None:
    rewards = scored([[1, 0, 0.5]], context=[[0.2, 0.8, 0.5]], logic=[[1.0, 0.0, 0.2]])
    tags = [
        {"context": (0, 2), "think": (2, 4)}, {"context": (1, 3)}, {"context": (0, 1), "think": (1, 5)},
    ]  # fmt: skip
    spans = {"context": "context", "logic": "think"}
    recipe = recipe_of("span_grpo", spans=spans, weights={"logic": 0.5})
    found = recipe.advantages(rewards, written(rewards, tags)).values
    scores = {"context": [0.2, 0.8, 0.5], "logic": [1.0, 0.0, 0.2]}
    for g in range(3):
        for t in range(5):
            expected = [1, 0, 0.5][g] - 0.5
            for name, tag in spans.items():
                start, end = tags[g].get(tag, (0, 0))
                mean = sum(scores[name]) / 3
                weight = 0.5 if name == "logic" else 1.0
                expected += weight * (scores[name][g] - mean) * (start <= t < end)
            assert found[0, g, t].item() == pytest.approx(expected, abs=1e-6)


def test_a_failed_judge_of_a_span_takes_part_in_no_mean_and_moves_nothing() -> None:
    rewards = scored([[1, 0, 0]], context=[[None, 0.2, 0.6]])
    tags = [{"context": (0, 2)}] * 3
    recipe = recipe_of("span_grpo", spans={"context": "context"})
    values = recipe.advantages(rewards, written(rewards, tags, 3)).values[0]
    third = 1 / 3
    expected = [[2 * third] * 3, [-third - 0.2] * 2 + [-third], [-third + 0.2] * 2 + [-third]]
    torch.testing.assert_close(values, torch.tensor(expected))


def test_a_group_of_equal_rewards_still_learns_from_its_spans() -> None:
    rewards = scored([[1, 1], [1, 1]], context=[[0.0, 1.0], [0.5, 0.5]])
    recipe = recipe_of("span_grpo", spans={"context": "context"}, dynamic_sampling_batches=1)
    assert recipe.keep(rewards).tolist() == [True, False]
    found = recipe.advantages(rewards, written(rewards, [{"context": (0, 1)}] * 2, 2))
    assert found.values[0].tolist() == [[-0.5, 0.0], [0.5, 0.0]]
    assert found.kept.tolist() == [[True, True], [False, False]]


def test_without_spans_it_is_dr_grpo_over_tokens() -> None:
    rewards = rewards_of([[1, 0, 0.5]])
    plain = recipe_of("grpo", scale="none", aggregation="token")
    found = recipe_of("span_grpo").advantages(rewards, rollouts_of(rewards)).values
    torch.testing.assert_close(found, plain.advantages(rewards, rollouts_of(rewards)).values)


def test_a_reward_or_tokens_that_are_not_there_are_refused() -> None:
    rewards = scored([[1, 0]], context=[[0.0, 1.0]])
    with pytest.raises(UserError, match=r"names of rewards, got 'contxt'.*context"):
        recipe_of("span_grpo", spans={"contxt": "context"}).advantages(
            rewards, written(rewards, [{}, {}])
        )
    with pytest.raises(UserError, match="weights: expected names of spans, got 'logic'"):
        recipe_of("span_grpo", spans={"context": "context"}, weights={"logic": 1.0})
    plain = rollouts_of(rewards)
    parsed = Parsed("B", "so", "think", True, 1.0, {"context": (9, 12)})
    seen = tuple(replace(one, parsed=parsed) for one in plain.completions[0])
    with pytest.raises(UserError, match="expected `tag_tokens` among the config's strategies"):
        recipe_of("span_grpo", spans={"context": "context"}).advantages(
            rewards, replace(plain, completions=(seen,))
        )
