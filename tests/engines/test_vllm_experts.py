"""Engine `vllm` and mixtures of experts: which experts it chose of which tokens, and their videos."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.prompts import VIDEO_CASES, ask, ask_about_images, mix_images
from helpers.small import policy
from helpers.vllm_engine import SMALL, engine_for

pytest.importorskip("vllm.version", reason="needs vLLM: make test-vllm")

from vlmrl.data.prompt import continue_prompt
from vlmrl.engines.base import Sampling
from vlmrl.engines.hf import Hf
from vlmrl.monitoring.run_checks import measure_parity
from vlmrl.schema import PromptBatch

UNKNOWN = 255
BLOCK = SMALL["block_size"]


@pytest.mark.parametrize(
    "name", ["qwen3_vl_moe", pytest.param("glm4v_moe", marks=pytest.mark.nightly)]
)
def test_the_experts_are_those_that_the_trainer_would_choose(name):
    made = policy(name, router_replay=True)
    engine, own = engine_for(made), Hf().start(made)
    prompts = [*mix_images(made), ask_about_images(made, text="red " * 60)]
    for again in (False, True):  # then the prefix cache has the prompts' whole blocks
        drawn = engine.generate(PromptBatch(tuple(prompts)), Sampling(3, 40, seed=3 + again))
        for prompt, group in zip(prompts, drawn.completions, strict=True):
            cached = again and len(prompt.encoded.ids) > BLOCK
            assert (group[0].experts.prompt == UNKNOWN).any() == cached
            for said in group:
                assert said.experts.prompt is group[0].experts.prompt
                assert len(said.experts.written) == len(said.token_ids) - 1
                assert not (said.experts.written == UNKNOWN).any()
                whole = PromptBatch((continue_prompt(prompt, said.token_ids[:-1]),))
                ((read,),) = own.generate(whole, Sampling(1, 1)).completions
                found = np.concatenate([said.experts.prompt, said.experts.written])
                known = found[..., 0] != UNKNOWN
                assert (np.sort(found)[known] == np.sort(read.experts.prompt)[known]).all()
    assert measure_parity(engine, made, prompts).max_abs < 1e-5
    engine.close()


@pytest.mark.parametrize(
    "name", ["qwen3_vl_moe", pytest.param("glm4v_moe", marks=pytest.mark.nightly)]
)
def test_log_probs_after_videos_equal_the_trainers(name):
    made = policy(name)
    engine = engine_for(made, max_videos=1)
    for case in VIDEO_CASES.keys() - {"two"}:
        prompts = [ask(made, *VIDEO_CASES[case]())]
        assert measure_parity(engine, made, prompts).max_abs < 1e-5, case
    engine.close()


def test_in_bfloat16_the_engines_experts_bring_the_log_probs_nearer():
    found = {}
    for replay in (False, True):
        made = policy("qwen3_vl_moe", router_replay=replay, dtype="bfloat16")
        engine = engine_for(made)
        found[replay] = measure_parity(engine, made, mix_images(made), n=8, max_tokens=32)
        engine.close()
    assert found[True].tokens == found[False].tokens
    assert found[True].mean_abs < 0.9 * found[False].mean_abs
