"""Engine `vllm` with the families of `ImageFamily`: the trainer's log-probs, before and after a sync.

Their heads are tied, the harder case: vLLM keeps a copy of the head.
"""

import pytest

from helpers.daily import marked
from helpers.prompts import (
    IMAGE_FAMILIES,
    VIDEO_CASES,
    ask,
    ask_about_images,
    converse,
    mix_images,
)
from helpers.small import CORPUS, FAMILIES, audio, model_config, policy_by
from helpers.vllm_engine import SERVED_TEXT, change, engine_for

pytest.importorskip("vllm.version", reason="needs vLLM: make test-vllm")


from vlmrl import plugins
from vlmrl.errors import UserError
from vlmrl.models.loading import load_model
from vlmrl.monitoring.run_checks import make_probe_prompts, measure_parity, tolerance
from vlmrl.policy.policy import Policy

CAUSAL_ON_CPU = ("gemma3",)
"""vLLM's attention for the CPU leaves out that the tokens of an image see each other both ways."""

UNSERVED = [name for name in IMAGE_FAMILIES if plugins.load("family", name).unserved]

BFLOAT16_ON_CPU = ("qwen3_5", "qwen3_5_moe", "minicpmv4_6")
"""vLLM 0.32 computes gated delta-nets on a CPU in bfloat16 alone."""
ROUNDING = {"gemma4": 1e-4}
"""Its attention is not scaled, so that rounding weighs more."""


DAILY = ("gemma3", "gemma4", "internvl", "mistral3")
"""Those that differ most in how vLLM serves them; the others are nightly."""
HEARD = ("gemma4",)
"""Families of `ImageFamily` that take recordings as well; here one alone, which vLLM lays out as no other."""
SERVED_VIDEOS = ("internvl",)
"""Families of `ImageFamily` whose videos vLLM computes in float32 as well."""


def tied_policy(name, **fields):
    config = model_config(name, **fields)
    text = {**config.build.text, **SERVED_TEXT.get(name, {}), "tie_word_embeddings": True}
    return policy_by(
        config.model_copy(update={"build": config.build.model_copy(update={"text": text})})
    )


@pytest.mark.parametrize(
    "name", marked(sorted({*IMAGE_FAMILIES} - {*FAMILIES, *UNSERVED, *BFLOAT16_ON_CPU}), DAILY)
)
def test_log_probs_equal_the_trainers_before_and_after_a_sync(name):
    made = tied_policy(name)
    videos = VIDEO_CASES.values() if name in SERVED_VIDEOS else ()
    engine = engine_for(made, max_videos=2 if videos else 0)
    prompts = [ask_about_images(made, text="red " * n) for n in (3, 60)]
    prompts += [] if name in CAUSAL_ON_CPU else [converse(made)]
    if name in CAUSAL_ON_CPU:
        with pytest.raises(UserError, match=r"mean \|Δ log p\|"):
            measure_parity(engine, made, make_probe_prompts(made)).require(
                tolerance(made), "at start"
            )
    else:
        prompts += [
            *mix_images(made),
            *make_probe_prompts(made),
            *(ask(made, *v()) for v in videos),
        ]
    close = ROUNDING.get(name, 1e-5)
    assert measure_parity(engine, made, prompts).max_abs < close
    if name in HEARD:
        assert measure_parity(engine, made, [ask(made, audio(1.2))]).max_abs < close
    change(made)
    assert measure_parity(engine, made, prompts).max_abs > 1e-2  # the engine does not know yet
    engine.sync(made)
    assert measure_parity(engine, made, prompts).max_abs < close
    engine.close()


@pytest.mark.parametrize(
    "name",
    [
        "qwen3_5",
        *(pytest.param(n, marks=pytest.mark.nightly) for n in ("qwen3_5_moe", "minicpmv4_6")),
    ],
)
def test_in_bfloat16_log_probs_after_states_are_the_trainers_up_to_rounding(name):
    """Heads of delta-nets are as wide as published ones: on a CPU vLLM takes no others."""
    config = model_config(name, dtype="bfloat16")
    text = {**config.build.text, "linear_key_head_dim": 128, "linear_value_head_dim": 128}
    config = config.model_copy(update={"build": config.build.model_copy(update={"text": text})})
    made = Policy(*load_model(config, CORPUS, seed=0), config)
    engine = engine_for(made, max_videos=2)
    prompts = [ask_about_images(made, text="red " * 60), *mix_images(made)]
    prompts += [ask(made, *VIDEO_CASES[case]()) for case in ("one", "two", "mixed")]
    before = measure_parity(engine, made, prompts)
    change(made)
    stale = measure_parity(engine, made, prompts)
    engine.sync(made)
    after = measure_parity(engine, made, prompts)
    engine.close()
    assert max(before.mean_abs, after.mean_abs) < 0.02 < stale.mean_abs, (before, stale, after)
