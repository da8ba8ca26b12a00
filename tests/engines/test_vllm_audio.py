"""Engine `vllm` with recordings: prompt ids and log-probs are the trainer's."""

import pytest

from helpers.prompts import ask, image
from helpers.small import audio, mixed_batch, policy, prompt
from helpers.videos import video
from helpers.vllm_engine import SMALL, change, engine_for, listening_policy, served_policy, tokens

pytest.importorskip("vllm.version", reason="needs vLLM: make test-vllm")


from vlmrl.config import LoraConfig
from vlmrl.engines.base import Sampling
from vlmrl.engines.hf import Hf
from vlmrl.engines.vllm_server import VllmServer
from vlmrl.errors import UserError
from vlmrl.monitoring.run_checks import make_probe_prompts, measure_parity
from vlmrl.schema import PromptBatch


@pytest.mark.parametrize("seconds", [pytest.param(2, marks=pytest.mark.nightly), 30])
def test_ids_and_log_probs_are_the_trainers_before_and_after_a_sync(seconds):
    made = listening_policy(seconds)  # 30 is the length that vLLM has built in
    engine = engine_for(made)
    prompts = [*mixed_batch(made).prompts, *make_probe_prompts(made)]
    assert measure_parity(engine, made, prompts).max_abs < 1e-5  # the engine checks the ids
    for step in range(2):
        change(made, step)
        assert measure_parity(engine, made, prompts).max_abs > 1e-2  # the engine does not know yet
        engine.sync(made)
        assert measure_parity(engine, made, prompts).max_abs < 1e-5
    hf, sampling = Hf().start(made), Sampling(n=2, max_tokens=8, greedy=True)
    batch = PromptBatch(tuple(prompts))
    assert tokens(engine.generate(batch, sampling)) == tokens(hf.generate(batch, sampling))
    with pytest.raises(UserError, match=r"5 audios exceed the engine's max_audios \(4\)"):
        engine.generate(PromptBatch((prompt(made, images=5),)), sampling)
    engine.close()


OMNI = [("qwen2_5_omni", None), ("qwen3_omni_moe", "merged")]
OMNI_NIGHTLY = [("qwen2_5_omni", "merged"), ("qwen2_5_omni", "adapter"), ("qwen3_omni_moe", None)]
OMNI += [pytest.param(*case, marks=pytest.mark.nightly) for case in OMNI_NIGHTLY]


@pytest.mark.parametrize(("name", "lora"), OMNI)
def test_the_omni_thinker_has_the_trainers_log_probs_before_and_after_a_sync(name, lora):
    towers = {"adapter": ["language"], "merged": ["language", "audio", "vision"]}
    adapted = {"lora": LoraConfig(rank=4, alpha=8, towers=towers[lora])} if lora else {}
    made = policy(name, **adapted)
    engine = engine_for(made, **({"lora": lora} if lora else {}))
    # The second has no whole number of frames.
    sights = [image((84, 56)), audio(1.2345), audio(4.1), image((56, 84))]
    prompts = [ask(made, *sights[:n]) for n in range(5)]
    assert measure_parity(engine, made, prompts).max_abs < 1e-5  # the engine checks the ids
    change(made)
    assert measure_parity(engine, made, prompts).max_abs > 1e-2  # the engine does not know yet
    engine.sync(made)
    assert measure_parity(engine, made, prompts).max_abs < 1e-5
    with pytest.raises(UserError, match=r"1 videos exceed the engine's max_videos \(0\)"):
        engine.generate(PromptBatch((ask(made, video(4)),)), Sampling(n=1, max_tokens=2))
    engine.close()


@pytest.mark.parametrize(
    ("name", "reason"),
    [("qwen2_5_omni", "vLLM lays out videos"), ("qwen3_omni_moe", "vLLM rounds the positions")],
)
def test_clips_of_omni_are_refused_with_the_reason(name, reason):
    with pytest.raises(UserError, match=rf"max_videos: {reason}.*use engine: hf"):
        engine_for(policy(name), max_videos=1)


@pytest.mark.nightly
def test_gemma_4_behind_a_server_hears_one_recording_and_several():
    made = served_policy("gemma4")
    engine = VllmServer(enforce_eager=True, **SMALL).start(made)
    heard = [[audio(1.2)], [image((84, 56)), audio(2.0)], [audio(4.1), audio(1.0)]]
    prompts = [ask(made, *media) for media in heard]
    assert measure_parity(engine, made, prompts).max_abs < 1e-4
    change(made)
    engine.sync(made)
    assert measure_parity(engine, made, prompts).max_abs < 1e-4
    engine.close()
