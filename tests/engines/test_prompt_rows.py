"""A prompt whose keys and values are held once draws what copies of it draw, and what the trainer scores."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache

from helpers.small import CORPUS, TEXT, advantages, mixed_batch, policy
from vlmrl.config import BuildConfig, ModelConfig
from vlmrl.engines import prompt_rows
from vlmrl.engines.base import Sampling
from vlmrl.engines.hf import Hf
from vlmrl.engines.prompt_rows import CopiedPrompts, SharedPrompts, hold
from vlmrl.forward.packing import pack
from vlmrl.models.loading import load_model
from vlmrl.policy.policy import Policy

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "internvl", "smolvlm", "qwen2_audio")


@pytest.fixture
def sharing(monkeypatch):
    """Choose whether prompts are shared, whatever that saves; lists what was held since."""
    held = []

    def choose(share):
        held.clear()
        monkeypatch.setattr(prompt_rows, "MIN_SAVED", 0 if share else 2**62)
        return held

    def note(*arguments):
        held.append(hold(*arguments))
        return held[-1]

    monkeypatch.setattr("vlmrl.engines.hf.hold", note)
    return choose


def generate(made, draw):
    engine = Hf().start(made)
    return engine.generate(mixed_batch(made), draw)


def tokens(rollouts):
    return [[c.token_ids for c in group] for group in rollouts.completions]


def logprobs(rollouts):
    return torch.tensor([lp for group in rollouts.completions for c in group for lp in c.logprobs])


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_shared_prompts_draw_what_copied_ones_draw_as_rows_and_prompts_leave(family, sharing):
    made = policy(family)
    made.stop_ids = tuple(range(0, 200, 6))
    draw = Sampling(n=5, max_tokens=12, seed=3)
    held = sharing(False)
    copied = generate(made, draw)
    assert type(held[0]) is CopiedPrompts
    held = sharing(True)
    shared = generate(made, draw)
    assert type(held[0]) is SharedPrompts
    assert len(held[0].rows) < 20
    assert tokens(shared) == tokens(copied)
    assert (logprobs(shared) - logprobs(copied)).abs().max() < 1e-5


def trainer_gap(made, rollouts, longest):
    """The largest difference between what the engine and the trainer's plain forward say of a token."""
    scored = advantages(rollouts)
    (batch,) = pack(rollouts, scored, updates=1, micro_tokens=2**40, max_tokens=longest)
    (micro,) = batch.micro
    with torch.no_grad():
        ours, _ = made.logprobs(micro)
    return (ours - micro.sampling_logprobs)[micro.mask].abs()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_sampling_logprobs_of_shared_prompts_equal_the_trainers(sharing, temperature):
    made = policy()
    made.temperature = temperature
    held = sharing(True)
    draw = Sampling(n=4, max_tokens=10, temperature=temperature, top_k=50, top_p=0.9, seed=1)
    rollouts = generate(made, draw)
    assert type(held[0]) is SharedPrompts
    assert trainer_gap(made, rollouts, 10).max() < 1e-5


def test_in_bfloat16_shared_prompts_are_as_close_to_the_trainer_as_copied_ones(sharing):
    made = policy(dtype="bfloat16")
    gaps = {}
    for share in (False, True):
        held = sharing(share)
        rollouts = generate(made, Sampling(n=4, max_tokens=10, seed=1))
        assert isinstance(held[0], SharedPrompts) is share
        gaps[share] = trainer_gap(made, rollouts, 10).mean()
    keys, _ = held[0].prompts[0]
    assert keys.dtype == held[0].cache.layers[0].keys.dtype == torch.bfloat16
    assert gaps[True] < 1.5 * gaps[False] < 0.05


def test_the_same_seed_draws_the_same_from_shared_prompts(sharing):
    made = policy()
    sharing(True)
    draws = [tokens(generate(made, Sampling(n=4, max_tokens=6, seed=s))) for s in (5, 5, 6)]
    assert draws[0] == draws[1] != draws[2]


def windowed_policy():
    windows = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    config = ModelConfig(build=BuildConfig(text={**TEXT, **windows}, vocab_size=320))
    return Policy(*load_model(config, CORPUS, seed=0), config)


MAKE = [windowed_policy, lambda: policy("gemma3"), lambda: policy(attention="eager")]


@pytest.mark.slow
@pytest.mark.parametrize("make", MAKE, ids=("windows", "gemma3", "eager"))
def test_windows_and_other_attention_copy_the_prompts(sharing, make):
    held = sharing(True)
    generate(make(), Sampling(n=3, max_tokens=3, seed=1))
    assert {type(rows) for rows in held} == {CopiedPrompts}


def test_a_completion_alone_and_a_few_short_ones_copy_their_prompt(sharing, monkeypatch):
    made = policy()
    held = sharing(True)
    monkeypatch.setattr(prompt_rows, "MIN_SAVED", 1)
    generate(made, Sampling(n=1, max_tokens=3))
    monkeypatch.setattr(prompt_rows, "MIN_SAVED", 2**12)
    generate(made, Sampling(n=3, max_tokens=3))
    assert [type(rows) for rows in held] == [CopiedPrompts] * 2


# ------------------------------------------------------------------------- the attention, by itself

K, HEADS, WIDTH = 2, 4, 8


def filled_cache(lengths, layers=2):
    """A cache of left-padded prompts of these lengths, with NaN-free noise everywhere, and its mask."""
    torch.manual_seed(0)
    cache = DynamicCache()
    for layer in range(layers):
        cache.update(*torch.randn(2, len(lengths), K, max(lengths), WIDTH), layer)
    steps = torch.arange(max(lengths))
    return cache, (steps >= max(lengths) - torch.tensor(lengths)[:, None]).long()


def attended(query, keys, values):
    """Softmax attention of query [H, D] on keys and values [K, T, D], in float64."""
    keys, values = (x.double().repeat_interleave(HEADS // K, 0) for x in (keys, values))
    scores = (keys @ query.double()[..., None])[..., 0] * 0.3
    return (scores.softmax(-1)[:, None] @ values)[:, 0]


@pytest.mark.slow
@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=4),
    st.integers(2, 4),
    st.randoms(use_true_random=False),
)
@settings(max_examples=40, deadline=None)
def test_every_row_attends_to_its_own_prompt_and_tokens(lengths, num_rows, random):
    cache, mask = filled_cache(lengths)
    prompts = [(layer.keys, layer.values) for layer in cache.layers]
    held = SharedPrompts(cache, mask, num_rows, 8)
    owner = [i for i in range(len(lengths)) for _ in range(num_rows)]
    own = [[[] for _ in owner] for _ in prompts]
    for _ in range(4):
        keep = sorted(random.sample(range(len(owner)), random.randint(1, len(owner))))
        held.take(torch.tensor(keep), 8)
        owner, own = [owner[i] for i in keep], [[rows[i] for i in keep] for rows in own]
        assert len(held.prompts[0][0]) == len(set(owner))
        assert held.grow().shape == (len(owner), len(own[0][0]) + 1)
        query = torch.randn(len(owner), HEADS, 1, WIDTH)
        for layer, (keys, values) in enumerate(prompts):
            new = torch.randn(2, len(owner), K, 1, WIDTH)
            seen = held.cache.update(*new, layer)
            found = held.attend(layer, query, *seen, 0.3)
            for row, prompt in enumerate(owner):
                own[layer][row] = [*own[layer][row], new[:, row]]
                real = mask[prompt].bool()
                mine = torch.cat(own[layer][row], 2)
                told = [
                    torch.cat([x[prompt][:, real], y], 1)
                    for x, y in zip((keys, values), mine, strict=True)
                ]
                right = attended(query[row, :, 0], *told)
                torch.testing.assert_close(found[row, 0].double(), right, atol=1e-5, rtol=0)


def test_a_prompt_is_held_once():
    lengths, num_rows = [5, 7], 6
    cache, mask = filled_cache(lengths, layers=1)
    before = cache.layers[0].keys
    held = SharedPrompts(cache, mask, num_rows, 3)
    assert held.prompts[0][0].data_ptr() == before.data_ptr()
    assert held.cache.layers[0].keys.untyped_storage().nbytes() == 12 * K * 3 * WIDTH * 4
    held.take(torch.arange(6, 12), 3)
    assert torch.equal(held.prompts[0][0], before[1:])
