"""The in-process engine: grouping, padding and leaving rows never change what is written."""

import pytest
import torch

from helpers.prompts import converse
from helpers.small import CORPUS, FAMILIES, TEXT, advantages, mixed_batch, policy
from vlmrl.config import BuildConfig, ModelConfig
from vlmrl.engines import hf, prompt_rows
from vlmrl.engines.base import Sampling
from vlmrl.engines.hf import Hf
from vlmrl.forward.packing import pack
from vlmrl.models.loading import load_model
from vlmrl.policy.policy import Policy
from vlmrl.schema import PromptBatch


def engine_for(made):
    engine = Hf().start(made)
    return engine


def tokens(rollouts):
    return [[c.token_ids for c in group] for group in rollouts.completions]


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_are_the_same_batched_grouped_and_alone(family):
    made = policy(family)
    batch = mixed_batch(made)
    greedy = Sampling(n=1, max_tokens=8, greedy=True)
    batched = tokens(engine_for(made).generate(batch, greedy))
    grouped = tokens(engine_for(made).generate(batch, Sampling(n=3, max_tokens=8, greedy=True)))
    few_rows = Hf(max_num_seqs=2).start(made)
    alone = [tokens(few_rows.generate(PromptBatch((p,)), greedy))[0] for p in batch.prompts]
    assert batched == alone
    assert grouped == [group * 3 for group in batched]
    assert tokens(few_rows.generate(batch, greedy)) == batched


def test_greedy_tokens_equal_transformers_own_generate():
    made = policy()
    batch = PromptBatch((*mixed_batch(made).prompts, converse(made)))
    ours = tokens(engine_for(made).generate(batch, Sampling(n=1, max_tokens=8, greedy=True)))
    for prompt, (written,) in zip(batch.prompts, ours, strict=True):
        ids = torch.tensor([prompt.encoded.ids])
        theirs = made.base.generate(
            input_ids=ids,
            mm_token_type_ids=(ids == made.processor.image_token_id).int(),
            **prompt.encoded.tensors,
            max_new_tokens=8,
            do_sample=False,
            suppress_tokens=made.banned.tolist(),
        )[0, ids.shape[1] :]
        assert list(written) == theirs.tolist()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_sampling_logprobs_equal_the_trainers(temperature):
    made = policy()
    made.temperature = temperature
    draw = Sampling(n=4, max_tokens=10, temperature=temperature, top_k=50, top_p=0.9, seed=1)
    rollouts = engine_for(made).generate(mixed_batch(made), draw)
    (batch,) = pack(rollouts, advantages(rollouts), updates=1, micro_tokens=400, max_tokens=10)
    assert len(batch.micro) > 1
    for micro in batch.micro:
        with torch.no_grad():
            ours, _ = made.logprobs(micro)
        gap = (ours - micro.sampling_logprobs)[micro.mask].abs().max()
        assert gap < 2e-5


def test_the_same_seed_draws_the_same_and_another_seed_does_not():
    made = policy()
    batch = mixed_batch(made)
    draws = [
        tokens(engine_for(made).generate(batch, Sampling(n=4, max_tokens=6, seed=seed)))
        for seed in (5, 5, 6)
    ]
    assert draws[0] == draws[1] != draws[2]
    assert len({t for group in draws[0] for t in group}) > 1


def test_finished_rows_leave_the_batch_without_changing_the_others(monkeypatch):
    made = policy()
    batch = mixed_batch(made)
    made.stop_ids = tuple(range(0, 200, 2))  # many ways to stop, so that rows leave early
    greedy = Sampling(n=2, max_tokens=12, greedy=True)
    leaving = engine_for(made).generate(batch, greedy)
    monkeypatch.setattr(hf, "SHRINK", -1.0)
    staying = engine_for(made).generate(batch, greedy)
    assert tokens(leaving) == tokens(staying)
    stopped = [c for g in leaving.completions for c in g if c.finish_reason == "stop"]
    assert stopped
    assert all(c.token_ids[-1] in made.stop_ids for c in stopped)
    assert all(not set(c.token_ids[:-1]) & set(made.stop_ids) for c in stopped)


def test_a_media_token_is_never_sampled_even_when_it_is_the_likeliest():
    made = policy()
    weight = made.base.get_output_embeddings().weight
    with torch.no_grad():
        weight[made.banned] = weight.abs().max() * 50 * torch.sign(weight[made.banned])
    draw = Sampling(n=8, max_tokens=10, seed=2)
    rollouts = engine_for(made).generate(mixed_batch(made), draw)
    drawn = {t for group in tokens(rollouts) for ids in group for t in ids}
    assert not drawn & set(made.banned.tolist())


def test_a_completion_cut_at_the_limit_says_so():
    made = policy()
    made.stop_ids = (10**9,)
    rollouts = engine_for(made).generate(mixed_batch(made), Sampling(n=1, max_tokens=5))
    assert {c.finish_reason for g in rollouts.completions for c in g} == {"length"}
    assert {len(c.logprobs) for g in rollouts.completions for c in g} == {5}


def numbers(rollouts):
    return torch.tensor([lp for group in rollouts.completions for c in group for lp in c.logprobs])


def windowed_policy():
    """The first layer attends to everything, the second to the last 8 tokens."""
    windows = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    config = ModelConfig(build=BuildConfig(text={**TEXT, **windows}, vocab_size=320))
    made = Policy(*load_model(config, CORPUS, seed=0), config)
    assert set(made.base.config.text_config.layer_types) == {"full_attention", "sliding_attention"}
    return made


@pytest.mark.parametrize("make", [policy, windowed_policy])
@pytest.mark.parametrize("growth", [1, 5, 128])
def test_a_cache_with_room_draws_what_transformers_own_cache_draws(monkeypatch, make, growth):
    made = make()
    made.stop_ids = tuple(range(0, 200, 6))
    batch, draw = mixed_batch(made), Sampling(n=3, max_tokens=12, seed=3)
    monkeypatch.setattr(prompt_rows, "GROWTH", growth)
    roomy = engine_for(made).generate(batch, draw)

    def copying(cache, rows, more):
        for layer in cache.layers:
            layer.reorder_cache(rows)

    monkeypatch.setattr(prompt_rows, "take_rows", copying)
    copied = engine_for(made).generate(batch, draw)
    assert tokens(roomy) == tokens(copied)
    assert len({len(ids) for group in tokens(roomy) for ids in group}) > 3
    assert (numbers(roomy) - numbers(copied)).abs().max() < 1e-6


@pytest.mark.parametrize("keyed", [False, True])
def test_draws_follow_the_probabilities(keyed):
    rare = 1e-5
    probs = torch.tensor([[0.0, 0.2, 0.0, 0.5 - rare, rare, 0.3, 0.0], [0.0, 0, 0, 0, 0, 0, 1.0]])
    count = 200_000
    draw = hf._shares_from(torch.Generator().manual_seed(0))
    if keyed:
        draw = hf._shares_of([*range(count)])
    drawn = hf._sampled(probs[:1].expand(count, -1), draw(torch.arange(count), 0))
    seen = torch.bincount(drawn, minlength=7) / count
    assert ((seen - probs[0]).abs() <= 5 * (probs[0] / count).sqrt()).all()
    assert set(hf._sampled(probs[1:].expand(1000, -1), draw(torch.arange(1000), 1)).tolist()) == {6}


def test_long_prompts_go_in_several_passes_where_draws_do_not_depend_on_company(monkeypatch):
    made = policy()
    batch, engine = mixed_batch(made), Hf().start(made)
    keys = tuple((7 + number,) for number in range(len(batch)))
    told = [list(hf._passes(batch, Sampling(1, 5, keys=keys), 512))]
    whole = engine.generate(batch, Sampling(1, 5, keys=keys)).completions
    longest = max(len(prompt.encoded.ids) for prompt in batch.prompts)
    monkeypatch.setattr(hf, "MAX_PAIRS", 2 * longest**2)
    told.append(list(hf._passes(batch, Sampling(1, 5, keys=keys), 512)))
    cut = engine.generate(batch, Sampling(1, 5, keys=keys)).completions
    assert [len(passes) for passes in told] == [1, 2]
    assert len(list(hf._passes(batch, Sampling(1, 5), 512))) == 1  # its draws know the company
    assert [group[0].token_ids for group in cut] == [group[0].token_ids for group in whole]
