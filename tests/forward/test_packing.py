"""Packing rollouts into micro-batches: what goes where; the cut never changes the update."""

import dataclasses

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vlmrl import plugins
from vlmrl.algorithms.base import LossInputs
from vlmrl.forward.packing import pack
from vlmrl.schema import (
    Advantages,
    Completion,
    Encoded,
    Frame,
    Parsed,
    Prompt,
    PromptBatch,
    Rollouts,
    Sample,
    Truth,
)

MAX_TOKENS = 9
VOCABULARY = 11
RECIPES = [
    ("grpo", {}),
    ("grpo", {"kl": 0.2}),
    ("dr_grpo", {"kl": 0.2, "kl_estimator": "k2"}),
    ("dapo", {}),
    ("gpg", {}),
    ("rloo", {}),
]


def prompt_of(name, length):
    encoded = Encoded((1,) * length, (1,), {}, torch.arange(length)[None], length)
    return Prompt(Sample(name, "source", ("?",), Truth()), "?", encoded, Frame())


def completion_of(ids):
    logprobs = tuple(-2.0 - 0.01 * i for i in ids)
    return Completion("", Parsed(None, None, "none", False, 0.0), Frame(), tuple(ids), logprobs)


def batch_of(prompt_lengths, completions, *, kept=None, seed=0):
    """Rollouts and advantages; `completions[p][g]` is a list of token ids."""
    prompts = tuple(prompt_of(str(p), n) for p, n in enumerate(prompt_lengths))
    rows = tuple(tuple(completion_of(ids) for ids in group) for group in completions)
    shape = (len(completions), len(completions[0]))
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    weights = 0.5 + torch.rand(shape, generator=torch.Generator().manual_seed(seed + 1))
    kept = torch.ones(shape).bool() if kept is None else torch.tensor(kept)
    return Rollouts(PromptBatch(prompts), rows), Advantages(values * kept, kept, weights)


@st.composite
def batches(draw):
    num_prompts, num_completions = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    ids = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=MAX_TOKENS)
    group = st.lists(ids, min_size=num_completions, max_size=num_completions)
    flags = st.lists(st.booleans(), min_size=num_completions, max_size=num_completions)
    return batch_of(
        draw(st.lists(st.integers(1, 12), min_size=num_prompts, max_size=num_prompts)),
        draw(st.lists(group, min_size=num_prompts, max_size=num_prompts)),
        kept=draw(st.lists(flags, min_size=num_prompts, max_size=num_prompts)),
        seed=draw(st.integers(0, 99)),
    )


def packed(batch, updates=1, micro_tokens=10_000):
    return pack(*batch, updates=updates, micro_tokens=micro_tokens, max_tokens=MAX_TOKENS)


def rows_of(micro):
    """Every row as (prompt name, token ids, sampling log-probs, advantage, weight)."""
    return [
        (
            micro.prompts[micro.group[b]].sample.id,
            tuple(micro.token_ids[b][micro.mask[b]].tolist()),
            tuple(micro.sampling_logprobs[b][micro.mask[b]].tolist()),
            micro.advantages[b].item(),
            micro.weights[b].item(),
        )
        for b in range(len(micro.group))
    ]


def loss_and_gradient(train_batch, recipe):
    """The update of a toy policy whose log-probs depend on prompt, position and token; float64."""
    noise = torch.Generator().manual_seed(3)
    table = torch.randn(VOCABULARY, generator=noise, dtype=torch.float64).requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for micro in train_batch.micro:
        lengths = torch.tensor([len(p.encoded.ids) for p in micro.prompts])[micro.group]
        where = torch.arange(micro.token_ids.shape[1]) + lengths[:, None]
        new = (table * torch.sin(where[..., None].double())).log_softmax(-1)
        new = new.gather(-1, micro.token_ids[..., None])[..., 0]
        shifted = torch.sin(torch.arange(VOCABULARY).double())[micro.token_ids]
        share = recipe.loss(
            LossInputs(
                new=new,
                old=new.detach() + 0.2 * shifted,
                sampling=new.detach() + 0.1 * shifted,
                ref=new.detach() + 0.3 * shifted if recipe.kl else None,
                advantages=micro.advantages,
                mask=micro.mask,
                weights=micro.weights,
                num_tokens=train_batch.num_tokens,
                num_rollouts=train_batch.num_rollouts,
                max_tokens=train_batch.max_tokens,
            )
        ).loss
        share.backward()
        total = total + share.detach()
    return total, table.grad


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), RECIPES)
@settings(max_examples=40)
@given(batches(), st.integers(1, 120), st.randoms(use_true_random=False))
def test_no_cut_and_no_order_changes_loss_or_gradient(name, options, batch, budget, random):
    rollouts, advantages = batch
    assume(advantages.kept.any())
    recipe = plugins.build("algorithm", name, options)
    (whole,) = packed(batch)
    expected = loss_and_gradient(whole, recipe)

    order = random.sample(range(len(rollouts.completions)), len(rollouts.completions))
    shuffled = Rollouts(
        PromptBatch(tuple(rollouts.batch.prompts[p] for p in order)),
        tuple(rollouts.completions[p] for p in order),
    )
    moved = Advantages(advantages.values[order], advantages.kept[order], advantages.weights[order])
    (cut,) = packed((shuffled, moved), micro_tokens=budget)
    torch.testing.assert_close(loss_and_gradient(cut, recipe), expected, atol=1e-6, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), RECIPES)
@settings(max_examples=20)
@given(batches(), st.integers(1, 7))
def test_no_padding_changes_loss_or_gradient(name, options, batch, extra):
    assume(batch[1].kept.any())
    recipe = plugins.build("algorithm", name, options)
    (whole,) = packed(batch)

    def wider(tensor):
        return torch.nn.functional.pad(tensor, (0, extra))

    padded = tuple(
        dataclasses.replace(
            m,
            token_ids=wider(m.token_ids),
            mask=wider(m.mask),
            sampling_logprobs=wider(m.sampling_logprobs),
        )
        for m in whole.micro
    )
    torch.testing.assert_close(
        loss_and_gradient(dataclasses.replace(whole, micro=padded), recipe),
        loss_and_gradient(whole, recipe),
        atol=1e-6,
        rtol=0,
    )


@given(batches(), st.integers(1, 120), st.integers(1, 4))
def test_each_kept_rollout_goes_into_exactly_one_micro_batch(batch, budget, updates):
    rollouts, advantages = batch
    expected = [
        (
            rollouts.batch.prompts[p].sample.id,
            c.token_ids,
            tuple(torch.tensor(c.logprobs).tolist()),
            advantages.values[p, g].item(),
            advantages.weights[p, g].item(),
        )
        for p, group in enumerate(rollouts.completions)
        for g, c in enumerate(group)
        if advantages.kept[p, g]
    ]
    train = packed(batch, updates, budget)
    found = [row for t in train for micro in t.micro for row in rows_of(micro)]
    assert sorted(found) == sorted(expected)
    assert sum(t.num_rollouts for t in train) == len(expected)
    assert sum(t.num_tokens for t in train) == sum(len(ids) for _, ids, *_ in expected)
    for t in train:
        assert t.num_tokens == sum(int(m.mask.sum()) for m in t.micro)
        assert t.max_tokens == MAX_TOKENS
        for m in t.micro:
            assert {m.prompts[i].sample.id for i in m.group.tolist()} == {
                p.sample.id for p in m.prompts
            }


@given(batches(), st.integers(1, 120))
def test_the_budget_holds_and_cuts_no_group_that_fits(batch, budget):
    rollouts, advantages = batch
    for t in packed(batch, micro_tokens=budget):
        places = {}
        for number, m in enumerate(t.micro):
            longest = max(len(p.encoded.ids) for p in m.prompts)
            cost = len(m.group) * (longest + m.token_ids.shape[1])
            assert cost <= budget or len(m.group) == 1
            for prompt in m.prompts:
                places.setdefault(int(prompt.sample.id), []).append(number)
        for p, where in places.items():
            lengths = [
                len(c.token_ids)
                for c, kept in zip(rollouts.completions[p], advantages.kept[p], strict=True)
                if kept
            ]
            alone = len(lengths) * (len(rollouts.batch.prompts[p].encoded.ids) + max(lengths))
            assert len(where) == 1 or alone > budget


def test_prompt_copies_and_padding_count_against_the_budget():
    # Two groups of two: rows cost (6 + 4) and (2 + 4), padded together 4 * (6 + 4).
    batch = batch_of([6, 2], [[[1] * 4, [2]], [[3] * 4, [4]]])
    assert len(packed(batch, micro_tokens=40)[0].micro) == 1
    assert len(packed(batch, micro_tokens=39)[0].micro) == 2
    assert len(packed(batch, micro_tokens=20)[0].micro) == 2
    # The first group alone exceeds 19: it is cut between its completions.
    assert len(packed(batch, micro_tokens=19)[0].micro) == 3


def test_a_group_that_is_not_kept_is_left_out_of_the_forward():
    kept = [[True, True], [False, False], [True, False]]
    batch = batch_of([3, 3, 3], [[[1], [2]], [[3], [4]], [[5], [6]]], kept=kept)
    (train,) = packed(batch)
    (micro,) = train.micro
    assert [p.sample.id for p in micro.prompts] == ["0", "2"]
    assert train.num_rollouts == 3
    assert sorted(micro.token_ids[micro.mask].tolist()) == [1, 2, 5]


def test_groups_are_dealt_in_order_to_updates_with_their_own_denominators():
    batch = batch_of([3] * 5, [[[p, p], [p]] for p in range(5)])
    train = packed(batch, updates=2)
    names = [[p.sample.id for m in t.micro for p in m.prompts] for t in train]
    assert names == [["0", "1"], ["2", "3", "4"]]
    assert [(t.num_tokens, t.num_rollouts) for t in train] == [(6, 4), (9, 6)]


def test_an_update_without_a_kept_rollout_does_not_take_place():
    kept = [[False, False], [True, True]]
    batch = batch_of([3, 3], [[[1], [2]], [[3], [4]]], kept=kept)
    assert len(packed(batch, updates=2)) == 1
    nothing = batch_of([3, 3], [[[1], [2]], [[3], [4]]], kept=[[False] * 2] * 2)
    assert packed(nothing, updates=2) == []


def test_micro_batches_have_the_promised_shapes_and_types():
    batch = batch_of([3, 5], [[[1, 2, 3], [4]], [[5], [6, 7]]])
    (micro,) = packed(batch)[0].micro
    assert micro.token_ids.shape == micro.mask.shape == micro.sampling_logprobs.shape == (4, 3)
    assert micro.advantages.shape == (4, 1)
    assert micro.weights.shape == micro.group.shape == (4,)
    assert micro.token_ids.dtype == micro.group.dtype == torch.long
    assert micro.mask.dtype == torch.bool
    assert micro.sampling_logprobs.dtype == micro.advantages.dtype == torch.float32
    assert micro.old_logprobs is None and micro.ref_logprobs is None


def test_a_completion_with_missing_log_probs_is_refused():
    rollouts, advantages = batch_of([3], [[[1, 2], [3]]])
    broken = dataclasses.replace(rollouts.completions[0][0], logprobs=(-1.0,))
    rollouts = dataclasses.replace(rollouts, completions=((broken, rollouts.completions[0][1]),))
    with pytest.raises(ValueError, match="completion 0: 2 tokens, but 1 sampling"):
        packed((rollouts, advantages))
