"""Tags whose text is not trained on: which tokens those are, and the gradient that is left."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from helpers.losses import inputs_of, recipe_of, rewards_of, rollouts_of
from helpers.rollouts_ahead import ahead_config, begin_training
from vlmrl import plugins
from vlmrl.answers import templates
from vlmrl.errors import UserError
from vlmrl.parts.strategies.masked_tags import MaskedTags
from vlmrl.schema import Advantages, Completion, Frame
from vlmrl.training.strategy import BatchDraw

DRAW = BatchDraw(0, 0, 0, 0.0)
STOP = -1
TEXTS = (
    "<think>a</think><search>q</search><information>Käse\nand 🧀</information><think>b</think>"
    "<information>more</information><answer>B</answer>",
    "<information>never closed",
    "plain <answer>B</answer>",
)
PIECES = [[text[n : n + 5] for n in range(0, len(text), 5)] for text in TEXTS]
WORDS = [*itertools.chain.from_iterable(PIECES)]
"""The text of each token id: of all texts in turn, five characters each."""


def decode(ids: list[int]) -> str:
    return "".join(WORDS[i] for i in ids)


RUN: Any = SimpleNamespace(
    policy=SimpleNamespace(stop_ids=(STOP,), tokenizer=SimpleNamespace(decode=decode))
)


def completions() -> tuple[Completion, ...]:
    firsts = itertools.accumulate(map(len, PIECES), initial=0)
    made = []
    for text, pieces, first in zip(TEXTS, PIECES, firsts, strict=False):
        ids = (*range(first, first + len(pieces)), STOP)
        known = {"token_ids": ids, "logprobs": (0.0,) * len(ids)}
        made.append(templates.completion(text, "answer_only", Frame(), **known))
    return tuple(made)


def masked(text: str, pieces: list[str]) -> list[bool]:
    """Which tokens hold a character of a pair of tags, character by character, the stop token last."""
    inside, opened = [False] * len(text), 0
    while (opened := text.find("<information>", opened)) >= 0:
        end = text.find("</information>", opened)
        if end < 0:
            break
        end += len("</information>")
        inside[opened:end] = [True] * (end - opened)
        opened = end
    starts = itertools.accumulate(map(len, pieces), initial=0)
    flags = [any(inside[a : a + len(p)]) for a, p in zip(starts, pieces, strict=False)]
    return [*flags, False]


def selected(strategy: MaskedTags, **extra: torch.Tensor) -> Advantages:
    rewards = rewards_of([[1.0, 0.0, 0.5]])
    rollouts = replace(rollouts_of(rewards), completions=(completions(),))
    before = replace(recipe_of("grpo").advantages(rewards, rollouts), extra=extra)
    return strategy.select(rollouts, rewards, before, DRAW, RUN)[2]


def test_each_closed_pair_has_no_weight_however_often_it_comes() -> None:
    found = selected(MaskedTags())
    expected = [masked(text, pieces) for text, pieces in zip(TEXTS, PIECES, strict=True)]
    assert sum(expected[0]) > 8 and not any(expected[1]) and not any(expected[2])
    for g, flags in enumerate(expected):
        weights = found.extra["token_weight"][0, g]
        assert weights[: len(flags)].tolist() == [0.0 if flag else 1.0 for flag in flags]
    share = sum(map(sum, expected)) / sum(map(len, expected))
    assert found.metrics["masked_tags/share"] == pytest.approx(share)
    halves = torch.full_like(found.extra["token_weight"], 0.5)
    both = selected(MaskedTags(), token_weight=halves)
    assert torch.equal(both.extra["token_weight"], 0.5 * found.extra["token_weight"])
    other = MaskedTags(tags=("search", "answer")).ranges(completions()[0], {STOP}, decode)
    assert len(other) == 2


def test_the_gradient_is_that_of_slow_code_with_the_tokens_in_the_mean() -> None:
    found = selected(MaskedTags())
    sizes = [c.num_tokens for c in completions()]
    longest = max(sizes)
    new = (-torch.rand(3, longest, generator=torch.Generator().manual_seed(1))).requires_grad_()
    mask = torch.arange(longest) < torch.tensor(sizes)[:, None]
    extra = {"token_weight": found.extra["token_weight"][0]}
    inputs = inputs_of(new, found.values[0][:, None], mask=mask, extra=extra)
    recipe_of("grpo").loss(inputs).loss.backward()
    assert new.grad is not None
    for g, size in enumerate(sizes):
        flags = masked(TEXTS[g], PIECES[g])
        for t in range(longest):
            trained = t < size and not flags[t]
            expected = -float(found.values[0, g]) / size / 3 if trained else 0.0
            assert float(new.grad[g, t]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("algorithm", ["grpo", "high_entropy"])
def test_a_step_packs_the_weights_of_what_was_written(tmp_path: Path, algorithm: str) -> None:
    more = ["strategies=[masked_tags]", f"algorithm={algorithm}", "engine=hf"]
    with begin_training(ahead_config(tmp_path / "run", *more)) as trainer:
        draw = trainer._draw_prompts(0)
        rollouts = trainer._generate(draw)
        text = "so <information>it is</information> B"
        ids = tuple(trainer.policy.tokenizer(text, add_special_tokens=False)["input_ids"])
        made = templates.completion(
            text,
            "none",
            Frame(),
            token_ids=ids,
            logprobs=(-1.0,) * len(ids),
            versions=((0, len(ids)),),
        )
        group = rollouts.completions[0]
        rollouts = replace(rollouts, completions=((made, *group[1:]), *rollouts.completions[1:]))
        rewards = trainer.scorer.score(rollouts, 0.0)
        rollouts, rewards, advantages = trainer._credit(rollouts, rewards, draw)
        (start, end), *_ = MaskedTags().ranges(
            made, trainer.policy.stop_ids, trainer.policy.tokenizer.decode
        )
        assert trainer.policy.tokenizer.decode(ids[start:end]).strip().startswith("<information>")
        batches = trainer._prepare(trainer._pack(rollouts, advantages))
        rows = [
            weights[: len(ids)].tolist()
            for micro in batches[0].micro
            for weights, tokens in zip(micro.extra["token_weight"], micro.token_ids, strict=True)
            if tuple(tokens[: len(ids)].tolist()) == ids
        ]
    ((*weights,),) = rows
    assert weights[start:end] == [0.0] * (end - start)
    assert algorithm != "grpo" or weights == [1.0] * start + [0.0] * (end - start) + [1.0] * (
        len(ids) - end
    )


@pytest.mark.parametrize("tags", [[], [""], ["a>b"]])
def test_names_that_are_none_are_refused(tags: list[str]) -> None:
    with pytest.raises(UserError, match="expected names of tags"):
        plugins.build("strategy", "masked_tags", {"tags": tags})
