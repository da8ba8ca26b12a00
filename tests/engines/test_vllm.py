"""Engine `vllm` against the trainer and against engine `hf`: parity, ids, sampling, faults."""

import dataclasses
import os

import pytest
import torch
from PIL import Image

from helpers.prompts import VIDEO_CASES, ask, converse
from helpers.small import FAMILIES, advantages, mixed_batch, policy, prompt
from helpers.vllm_engine import change, engine_for, set_options, tokens

pytest.importorskip("vllm.version", reason="needs vLLM: make test-vllm")

from vlmrl.config import LoraConfig
from vlmrl.engines.base import Sampling
from vlmrl.engines.hf import Hf
from vlmrl.engines.vllm import Vllm
from vlmrl.engines.vllm_parts import adapted_vllm
from vlmrl.errors import UserError
from vlmrl.forward.packing import pack
from vlmrl.monitoring.run_checks import make_probe_prompts, measure_parity, tolerance
from vlmrl.schema import PromptBatch
from vlmrl.training import evaluation

LORA = LoraConfig(rank=4, alpha=8)
DAILY = (("full", "qwen2_5_vl"), ("lora", "qwen3_vl"))
"""What is synced by default; the other families and forms are nightly."""


@pytest.fixture(scope="module")
def pair():
    """A policy and its engine, for tests that leave both as they are."""
    made = policy()
    engine = engine_for(made)
    yield made, engine
    engine.close()


@pytest.fixture
def fresh():
    """A policy and its engine, for tests that break something."""
    made = policy()
    engine = engine_for(made)
    yield made, engine
    engine.close()


WAYS = [
    pytest.param(
        family,
        lora,
        id=f"{name}-{family}",
        marks=() if (name, family) in DAILY else pytest.mark.nightly,
    )
    for name, lora in (("full", None), ("lora", LORA))
    for family in FAMILIES
]


@pytest.mark.parametrize(("family", "lora"), WAYS)
def test_log_probs_equal_the_trainers_before_and_after_a_sync(family, lora):
    made = policy(family, lora=lora)
    engine = engine_for(made, max_videos=2)
    videos = [ask(made, *media()) for media in VIDEO_CASES.values()]
    prompts = [*mixed_batch(made).prompts, *make_probe_prompts(made), *videos]
    assert measure_parity(engine, made, prompts).max_abs < 1e-5
    for step in range(2):
        change(made, step)
        assert measure_parity(engine, made, prompts).max_abs > 1e-2  # the engine does not know yet
        engine.sync(made)
        assert measure_parity(engine, made, prompts).max_abs < 1e-5
    engine.close()


@pytest.mark.parametrize(
    "family",
    [pytest.param(f, marks=() if f == "qwen3_vl" else pytest.mark.nightly) for f in FAMILIES],
)
def test_an_adapter_gives_the_trainers_log_probs_after_every_sync(family):
    made = policy(family, lora=LORA)
    engine = engine_for(made, lora="adapter")
    assert measure_parity(engine, made, make_probe_prompts(made)).max_abs < 1e-5
    for step in range(2):
        change(made, step)
        engine.sync(made)
        assert measure_parity(engine, made, make_probe_prompts(made)).max_abs < 1e-5
    engine.close()


def tied():
    """A policy whose head is its embedding; `named_parameters` knows no head."""
    made = policy()
    made.base.config.text_config.tie_word_embeddings = True
    made.base.config.tie_word_embeddings = True
    made.base.tie_weights()
    assert made.base.lm_head.weight is made.base.get_input_embeddings().weight
    return made


def test_a_tied_head_arrives_with_the_rest():
    made = tied()
    engine = engine_for(made)
    change(made)
    engine.sync(made)
    assert measure_parity(engine, made, make_probe_prompts(made)).max_abs < 1e-5
    engine.close()


# ---------------------------------------------------------------------------------- the draw


def test_greedy_tokens_equal_the_hf_engines(pair):
    made, engine = pair
    reference = Hf().start(made)
    draw = Sampling(n=1, max_tokens=8, greedy=True)
    batch = PromptBatch((*mixed_batch(made).prompts, converse(made)))
    assert tokens(engine.generate(batch, draw)) == tokens(reference.generate(batch, draw))


@pytest.mark.parametrize("mode", evaluation.MODES)
def test_forced_answers_equal_the_hf_engines(pair, mode):
    made, engine = pair
    reference = Hf().start(made)
    batch = mixed_batch(made)
    ours, theirs = (evaluation.generate(e, made, batch, mode, 12) for e in (engine, reference))
    assert tokens(ours) == tokens(theirs)
    begins = "<think>\n\n</think>" if mode == "direct" else "<think>"
    assert all(c.text.startswith(begins) for group in ours.completions for c in group)


def test_a_completion_is_what_the_hf_engine_would_make_of_its_ids(pair):
    made, engine = pair
    reference = Hf().start(made)
    draw = Sampling(n=2, max_tokens=8, greedy=True)
    batch = mixed_batch(made)
    rollouts = engine.generate(batch, draw)
    for ours, theirs in zip(
        rollouts.completions, reference.generate(batch, draw).completions, strict=True
    ):
        for a, b in zip(ours, theirs, strict=True):
            assert (a.text, a.parsed, a.frame, a.finish_reason) == (
                b.text,
                b.parsed,
                b.frame,
                b.finish_reason,
            )
            assert a.versions == b.versions == ((made.version, len(a.token_ids)),)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.3])
def test_sampling_log_probs_are_those_at_the_temperature_before_cuts(pair, temperature):
    made, engine = pair
    made.temperature = temperature
    draw = Sampling(n=4, max_tokens=10, temperature=temperature, top_k=50, top_p=0.9, seed=1)
    rollouts = engine.generate(mixed_batch(made), draw)
    (batch,) = pack(rollouts, advantages(rollouts), updates=1, micro_tokens=4000, max_tokens=10)
    for micro in batch.micro:
        with torch.no_grad():
            ours, _ = made.logprobs(micro)
        assert (ours - micro.sampling_logprobs)[micro.mask].abs().max() < 1e-5
    made.temperature = 1.0


def test_top_k_of_one_is_greedy(pair):
    made, engine = pair
    batch = mixed_batch(made)
    greedy = engine.generate(batch, Sampling(n=1, max_tokens=8, greedy=True))
    one = engine.generate(batch, Sampling(n=1, max_tokens=8, top_k=1, seed=3))
    assert tokens(one) == tokens(greedy)


def test_the_same_seed_draws_the_same_and_another_seed_does_not(pair):
    made, engine = pair
    batch = mixed_batch(made)
    draws = [
        tokens(engine.generate(batch, Sampling(n=4, max_tokens=6, seed=seed))) for seed in (5, 5, 6)
    ]
    assert draws[0] == draws[1] != draws[2]
    assert len({ids for group in draws[0] for ids in group}) == 16


def test_a_part_of_a_batch_is_drawn_as_in_the_whole(pair):
    made, engine = pair
    batch, draw = mixed_batch(made), Sampling(n=3, max_tokens=8, seed=7)
    whole = tokens(engine.generate(batch, draw))
    assert tokens(engine.generate(batch.part([3, 1]), draw.at([3, 1]))) == [whole[3], whole[1]]


def test_more_prompt_tokens_than_one_forward_takes_are_no_trouble(pair):
    made, engine = pair
    batch = PromptBatch(tuple(prompt(made, i, text="red " * (450 - i)) for i in range(24)))
    assert sum(len(p.encoded.ids) for p in batch.prompts) > 2 * 8192
    rollouts = engine.generate(batch, Sampling(n=2, max_tokens=2, seed=1))
    assert rollouts.shape == (24, 2)


def test_a_media_token_is_never_sampled_even_when_it_is_the_likeliest(fresh):
    made, engine = fresh
    with torch.no_grad():
        weight = made.base.get_output_embeddings().weight
        weight[made.banned] = weight.abs().max() * 10 * torch.sign(weight[made.banned])
    engine.sync(made)
    rollouts = engine.generate(mixed_batch(made), Sampling(n=8, max_tokens=10, seed=2))
    drawn = {t for group in tokens(rollouts) for ids in group for t in ids}
    assert not drawn & set(made.banned.tolist())


def test_only_the_policys_stop_ids_stop(fresh):
    made, engine = fresh
    made.stop_ids = tuple(range(0, 200, 20))
    rollouts = engine.generate(mixed_batch(made), Sampling(n=8, max_tokens=12, seed=1))
    found = [c for group in rollouts.completions for c in group]
    assert {c.finish_reason for c in found} == {"stop", "length"}
    for c in found:
        assert (c.token_ids[-1] in made.stop_ids) == (c.finish_reason == "stop")
        assert not set(c.token_ids[:-1]) & set(made.stop_ids)
    made.stop_ids = ()
    rollouts = engine.generate(mixed_batch(made), Sampling(n=8, max_tokens=12, seed=1))
    assert {len(ids) for group in tokens(rollouts) for ids in group} == {12}


# ----------------------------------------------------------------------- traps, seen by the probe


def stale_prefix(engine, made):
    """All weights, but what the cache holds of the prompts is of the old ones."""
    engine._llm.collective_rpc(adapted_vllm.load_weights, args=(list(made.weights().items()),))
    engine._llm.llm_engine.reset_encoder_cache()


def stale_images(engine, made):
    """All weights, but the features of known images are of the old ones."""
    model = engine._llm.llm_engine.model_executor.driver_worker.worker.model_runner.get_model()
    config = engine._llm.llm_engine.model_config
    adapted_vllm.begin_update(model, config)
    model.load_weights(iter(made.weights().items()))
    adapted_vllm.finish_update(model, config)
    assert engine._llm.reset_prefix_cache()


def missing_head(engine, made):
    """What `named_parameters` of a tied model holds."""
    updated(engine, made.base.named_parameters())


def only_q_proj(engine, made):
    """A part of what vLLM keeps as one fused weight; the rest is memory that nobody wrote.

    Given as zeros, since such memory may also hold numbers that are not finite, and that is a fault
    for which the engine starts vLLM again.
    """
    fused = [(n, w) for n, w in made.weights().items() if any(f"{x}_proj" in n for x in "qkv")]
    updated(engine, [(n, w if "q_proj" in n else torch.zeros_like(w)) for n, w in fused])


def stale_adapter(engine, made):
    """New files under a number that vLLM knows."""
    made.adapter.save_pretrained(engine._adapter_folder.name)
    assert engine._llm.reset_prefix_cache()


def updated(engine, items):
    """An engine that updates through vLLM itself, which silently accepts less than all of the weights."""
    items = [(name, weight.detach()) for name, weight in items]
    engine._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": items})
    engine._llm.llm_engine.reset_encoder_cache()
    assert engine._llm.reset_prefix_cache()


TRAPS = [
    (stale_prefix, policy, {}),
    (stale_images, policy, {}),
    pytest.param(missing_head, tied, {}, marks=pytest.mark.nightly),
    (only_q_proj, policy, {}),
    pytest.param(
        stale_adapter, lambda: policy(lora=LORA), {"lora": "adapter"}, marks=pytest.mark.nightly
    ),
]


@pytest.mark.parametrize(("trap", "make", "options"), TRAPS)
def test_the_probe_catches(trap, make, options):
    made = make()
    engine = engine_for(made, **options)
    prompts = make_probe_prompts(made)
    measure_parity(engine, made, prompts).require(tolerance(made), "at start")
    change(made, scale=0.01)
    trap(engine, made)
    engine._llm.update_weight_version(str(made.version))
    engine._version = made.version
    with pytest.raises(UserError, match=r"after a sync: .* mean \|Δ log p\| .* Likely: weights"):
        measure_parity(engine, made, prompts).require(tolerance(made), "after a sync")
    engine.sync(made)
    assert measure_parity(engine, made, prompts).max_abs < 1e-5
    engine.close()


# ---------------------------------------------------------------------------------------- faults


def test_an_update_that_lacks_weights_is_refused(fresh):
    made, engine = fresh
    change(made)
    lacking = [(n, w) for n, w in made.weights().items() if n != "lm_head.weight"]
    with pytest.raises(RuntimeError, match=r"no weights of language_model\.lm_head"):
        engine._llm.collective_rpc(adapted_vllm.load_weights, args=(lacking,))
    engine.sync(made)
    assert measure_parity(engine, made, make_probe_prompts(made)).max_abs < 1e-5


def test_an_update_that_breaks_off_half_way_ends_in_a_restart_with_the_new_weights(fresh):
    made, engine = fresh
    change(made)
    before = engine._llm
    names = made.family.export_names
    calls = []

    class Broken(type(made.family)):
        def export_names(self, named):
            calls.append(1)
            more = {"model.no_such_layer.weight": torch.zeros(1)} if len(calls) == 3 else {}
            return names(named) | more

    made.family = Broken()
    engine.sync(made)
    assert engine._llm is not before and len(calls) == 2 * len(list(made.units()))
    assert measure_parity(engine, made, make_probe_prompts(made)).max_abs < 1e-5


def test_an_update_that_never_works_stops_the_run(fresh):
    made, engine = fresh

    class Broken(type(made.family)):
        def export_names(self, named):
            return {"model.no_such_layer.weight": torch.zeros(1)}

    made.family = Broken()
    with pytest.raises(UserError, match=r"cannot take the weights: .*no_such_layer"):
        engine.sync(made)


def test_an_engine_that_fails_in_generation_is_restarted_and_asked_again(fresh, monkeypatch):
    made, engine = fresh
    change(made)
    engine.sync(made)
    batch, draw = mixed_batch(made), Sampling(n=3, max_tokens=8, seed=4)
    whole = engine.generate(batch, draw)
    broken = engine._llm
    steps = []

    def step():
        steps.append(1)
        if len(steps) > 3:
            raise RuntimeError("Encoder cache miss")
        return type(broken.llm_engine).step(broken.llm_engine)

    monkeypatch.setattr(broken.llm_engine, "step", step)
    again = engine.generate(batch, draw)
    assert len(steps) == 4 and engine._llm is not broken
    assert tokens(again) == tokens(whole)
    assert measure_parity(engine, made, make_probe_prompts(made)).max_abs < 1e-5


def test_an_engine_that_makes_no_progress_meets_the_deadline(fresh, monkeypatch):
    made, engine = fresh
    set_options(engine, max_restarts=0, generate_timeout_s=0.5)
    monkeypatch.setattr(engine._llm.llm_engine, "step", list)
    with pytest.raises(UserError, match=r"failed 1 times: generation: 4 of 4 prompts .* 0.5 s"):
        engine.generate(mixed_batch(made), Sampling(n=2, max_tokens=4))
    monkeypatch.undo()
    set_options(engine, generate_timeout_s=60)
    engine.generate(mixed_batch(made), Sampling(n=2, max_tokens=4))  # nothing stayed behind


def test_weights_of_another_version_are_not_believed(fresh):
    made, engine = fresh
    set_options(engine, max_restarts=0)
    engine._llm.update_weight_version("7")
    with pytest.raises(UserError, match=r"by weights \(\(7, 4\),\), not by version 0"):
        engine.generate(PromptBatch((prompt(made),)), Sampling(n=1, max_tokens=4))


# ------------------------------------------------------------------------------------- bad input


def test_a_prompt_that_does_not_fit_is_named(pair):
    made, engine = pair
    with pytest.raises(UserError, match=r"sample '0': \d+ prompt tokens and 1020 new ones exceed"):
        engine.generate(PromptBatch((prompt(made),)), Sampling(n=1, max_tokens=1020))


def test_a_prompt_of_more_images_than_the_engine_serves_is_named(pair):
    made, engine = pair
    many = PromptBatch((prompt(made), prompt(made, 1, images=17)))
    with pytest.raises(UserError, match=r"sample '1': 17 images exceed the engine's max_images"):
        engine.generate(many, Sampling(n=1, max_tokens=4))


def test_other_pixels_than_the_trainers_are_named(pair):
    made, engine = pair
    asked = prompt(made, 3)
    other = dataclasses.replace(asked, media=(asked.images[0].resize((140, 140)),))
    with pytest.raises(UserError, match=r"sample '3': \d+ prompt tokens in the trainer, \d+ in"):
        engine.generate(PromptBatch((prompt(made), other)), Sampling(n=1, max_tokens=4))


def test_a_refused_image_is_named_and_leaves_nothing_behind(pair):
    made, engine = pair
    bad = dataclasses.replace(prompt(made, 5), media=(Image.new("RGB", (3000, 2)),))
    batch = PromptBatch((prompt(made), bad))
    with pytest.raises(UserError, match="sample '5': vLLM refuses it"):
        engine.generate(batch, Sampling(n=2, max_tokens=4))
    engine.generate(PromptBatch((prompt(made),)), Sampling(n=2, max_tokens=4))


def test_sleep_without_a_gpu_is_refused():
    with pytest.raises(UserError, match="enable_sleep_mode: vLLM sleeps on GPUs only"):
        Vllm(enable_sleep_mode=True).start(policy())


def test_an_adapter_for_the_vision_tower_is_refused():
    lora = LoraConfig(rank=4, towers=["language", "vision"])
    with pytest.raises(UserError, match=r"model.lora.towers is \['language', 'vision'\]"):
        Vllm(lora="adapter").start(policy(lora=lora))
    with pytest.raises(UserError, match=r"'adapter' needs model.lora"):
        Vllm(lora="adapter").start(policy())


# ----------------------------------------------------------------------------- a polite neighbour


def test_the_process_is_left_as_it_was():
    made = policy()
    torch.manual_seed(3)
    cores, threads, state = os.sched_getaffinity(0), torch.get_num_threads(), torch.get_rng_state()
    engine = engine_for(made)
    assert os.sched_getaffinity(0) == cores
    assert torch.equal(torch.get_rng_state(), state)
    torch.set_num_threads(threads + 1)
    assert torch.get_num_threads() == threads + 1
    torch.set_num_threads(threads)
    engine.close()
    engine.close()
    assert torch.get_default_dtype() == torch.float32 and torch.is_grad_enabled()
