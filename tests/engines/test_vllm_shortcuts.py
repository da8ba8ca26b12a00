"""What makes vLLM faster: guessed tokens, a cached first turn, caches and weights of 8 bits."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from helpers.prompts import ask
from helpers.small import mixed_batch, policy, prompt
from helpers.vllm_engine import SMALL, change, engine_for, tokens

pytest.importorskip("vllm.version", reason="needs vLLM: make test-vllm")

from vlmrl.data.prompt import continue_prompt
from vlmrl.engines.base import Sampling
from vlmrl.engines.hf import Hf
from vlmrl.engines.vllm import RunningVllm, Vllm
from vlmrl.engines.vllm_server import VllmServer
from vlmrl.monitoring.run_checks import make_probe_prompts, measure_parity
from vlmrl.schema import PromptBatch

needs_avx512 = pytest.mark.skipif(
    "AVX512" not in torch.backends.cpu.get_cpu_capability(), reason="refused without AVX-512"
)
GUESSES = {"speculative_tokens": 4, "ngram_max": 3, "ngram_min": 1}


@pytest.fixture(scope="module")
def guessing():
    """A policy whose tokens repeat, and an engine that guesses them."""
    made = policy()
    engine = engine_for(made, **GUESSES)
    change(made)
    engine.sync(made)
    yield made, engine
    engine.close()


def repeating(made):
    """A prompt of text whose tokens have followed each other before."""
    return prompt(made, 0, images=0, text="red green blue " * 6)


@needs_avx512
def test_guesses_save_forwards_and_leave_greedy_tokens_as_they_are(guessing, monkeypatch):
    made, engine = guessing
    batch, draw = PromptBatch((repeating(made),)), Sampling(n=1, max_tokens=64, greedy=True)
    forwards, core = [], engine._llm.llm_engine
    monkeypatch.setattr(core, "step", lambda: forwards.append(1) or type(core).step(core))
    written = tokens(engine.generate(batch, draw))
    assert len(forwards) < 48
    assert written == tokens(Hf().start(made).generate(batch, draw))


@needs_avx512
def test_with_guesses_log_probs_are_the_trainers_before_and_after_a_sync(guessing):
    made, engine = guessing
    prompts = [*mixed_batch(made).prompts, repeating(made)]
    assert measure_parity(engine, made, prompts, max_tokens=32).max_abs < 1e-5
    change(made, 1)
    assert measure_parity(engine, made, prompts).max_abs > 1e-2  # the engine does not know yet
    engine.sync(made)
    assert measure_parity(engine, made, prompts, max_tokens=32).max_abs < 1e-5


@needs_avx512
def test_with_guesses_the_draw_is_the_policys(guessing):
    """Probabilities of drawn tokens, and how often one comes that followed the last token before, have the
    means that the policy's own distributions give them, within four standard deviations."""
    made, engine = guessing
    made.temperature, asked = 0.7, repeating(made)
    draw = Sampling(n=64, max_tokens=32, temperature=0.7, seed=2)
    (group,) = engine.generate(PromptBatch((asked,)), draw).completions
    rows = [[*asked.encoded.ids, *one.token_ids] for one in group]
    longest = max(map(len, rows))
    padded = torch.tensor([ids + [made.pad_id] * (longest - len(ids)) for ids in rows])
    with made.generating():
        logits = made.base(input_ids=padded).logits.double() / 0.7
    made.temperature = 1.0
    logits[..., made.banned] = -torch.inf
    gaps, variances = torch.zeros(2), torch.zeros(2)
    for ids, probabilities in zip(rows, logits.softmax(-1), strict=True):
        for at in range(len(asked.encoded.ids), len(ids)):
            p = probabilities[at - 1]
            followed = torch.zeros_like(p)
            followed[[b for a, b in pairwise(ids[:at]) if a == ids[at - 1]]] = 1
            values = torch.stack([p, followed])
            mean = values @ p
            gaps += values[:, ids[at]] - mean
            variances += values**2 @ p - mean**2
    scores = gaps / variances.sqrt()
    assert scores.abs().max() < 4, scores


@needs_avx512
def test_with_guesses_a_seed_draws_the_same_and_a_part_of_a_batch_as_in_the_whole(guessing):
    made, engine = guessing
    batch, draw = mixed_batch(made), Sampling(n=3, max_tokens=24, seed=7)
    whole = tokens(engine.generate(batch, draw))
    assert tokens(engine.generate(batch, draw)) == whole
    assert tokens(engine.generate(batch.part([3, 1]), draw.at([3, 1]))) == [whole[3], whole[1]]
    greedy = tokens(engine.generate(batch, Sampling(n=1, max_tokens=24, greedy=True)))
    assert tokens(engine.generate(batch, Sampling(n=1, max_tokens=24, top_k=1))) == greedy


@needs_avx512
def test_with_guesses_only_stop_ids_stop_and_media_tokens_are_never_drawn(guessing):
    made, engine = guessing
    before, head = made.stop_ids, made.base.get_output_embeddings().weight
    made.stop_ids, kept = tuple(range(0, 200, 20)), head.detach().clone()
    with torch.no_grad():
        head[made.banned] = head.abs().max() * 10 * torch.sign(head[made.banned])
    engine.sync(made)
    rollouts = engine.generate(mixed_batch(made), Sampling(n=8, max_tokens=12, seed=1))
    with torch.no_grad():
        head.copy_(kept)
    made.stop_ids, stops = before, made.stop_ids
    engine.sync(made)
    written = [c for group in rollouts.completions for c in group]
    assert {c.finish_reason for c in written} == {"stop", "length"}
    for c in written:
        assert (c.token_ids[-1] in stops) == (c.finish_reason == "stop")
        assert not set(c.token_ids[:-1]) & set(stops)
        assert not set(c.token_ids) & set(made.banned.tolist())


@needs_avx512
def test_an_engine_that_guesses_starts_again(guessing):
    made, engine = guessing
    before = engine._llm
    engine._restart()
    assert engine._llm is not before
    assert measure_parity(engine, made, [repeating(made)]).max_abs < 1e-5


@needs_avx512
@pytest.mark.nightly
def test_a_server_that_guesses_has_the_trainers_log_probs():
    made = policy()
    engine = VllmServer(enforce_eager=True, **SMALL, **GUESSES).start(made)
    prompts = [*mixed_batch(made).prompts, repeating(made)]
    for step in range(2):
        assert measure_parity(engine, made, prompts, max_tokens=32).max_abs < 1e-5
        change(made, step)
        engine.sync(made)
    batch, draw = PromptBatch((repeating(made),)), Sampling(n=1, max_tokens=32, greedy=True)
    assert tokens(engine.generate(batch, draw)) == tokens(Hf().start(made).generate(batch, draw))
    engine.close()


# ------------------------------------------------------------------------------------ cached turns


def test_a_second_turn_is_read_from_the_cache_and_after_a_sync_nothing_is():
    made = policy()
    engine = engine_for(made)
    block, first = SMALL["block_size"], ask(made, text="red " * 60)

    def cached(asked):
        draw = Sampling(n=1, max_tokens=48, greedy=True)
        ((output, _),) = engine._outputs([asked], draw)
        return output.num_cached_tokens, tuple(output.outputs[0].token_ids)

    nothing, written = cached(first)
    second = continue_prompt(first, (*written, *made.tokenizer("and green?")["input_ids"]))
    known = len(first.encoded.ids) + len(written) - 1  # the last token was not read
    assert (nothing, cached(second)[0]) == (0, known // block * block)
    change(made)
    engine.sync(made)
    assert cached(second)[0] == 0
    engine.close()


# ------------------------------------------------------------------------------------------ 8 bits


def near(engine, made, fresh):
    """Assert that after a sync the engine differs from the trainer by rounding, and not from a new engine."""
    prompts = make_probe_prompts(made)
    change(made)
    stale = measure_parity(engine, made, prompts).mean_abs
    engine.sync(made)
    other, draw = fresh(), Sampling(n=2, max_tokens=16, seed=3)
    synced, started = (e.generate(PromptBatch(prompts), draw) for e in (engine, other))
    rounding = measure_parity(engine, made, prompts).mean_abs
    engine.close()
    other.close()
    assert tokens(synced) == tokens(started)
    for ours, theirs in zip(synced.completions, started.completions, strict=True):
        assert [c.logprobs for c in ours] == [c.logprobs for c in theirs]
    assert 1e-2 < rounding < 0.1 < stale, (rounding, stale)


@needs_avx512
def test_a_cache_of_8_bits_differs_by_rounding_and_holds_nothing_of_old_weights():
    made = policy()

    def fresh():
        return engine_for(made, kv_cache_dtype="fp8")

    near(fresh(), made, fresh)


def test_weights_are_rounded_to_8_bits_anew_at_each_sync(monkeypatch):
    """vLLM's CPU build lacks the kernel that rounds; with one of torch in its place the rest runs."""
    from vllm import _custom_ops

    def round_to_fp8(weights, scale=None, **_):
        if scale is None:
            scale = (weights.abs().max().float() / 448).reshape(1)
        return (weights.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale

    monkeypatch.setattr(_custom_ops, "scaled_fp8_quant", round_to_fp8)
    made = policy(dtype="bfloat16")
    options = Vllm(enforce_eager=True, **SMALL, quantization="fp8")

    def fresh():
        engine = RunningVllm(options, made)  # `start` refuses a CPU
        engine.sync(made)
        return engine

    near(fresh(), made, fresh)
