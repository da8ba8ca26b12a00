"""Engine `vllm` with the families of `ImageFamily`: the trainer's log-probs, before and after a sync.

Their heads are tied, the harder case: vLLM keeps a copy of the head.
"""

import pytest

from helpers.prompts import IMAGE_FAMILIES, ask_about_images, converse, mix_images
from helpers.small import CORPUS, FAMILIES, model_config
from helpers.vllm_engine import change, engine_for

pytest.importorskip("vllm.version", reason="needs vLLM: make test-vllm")


from vlmrl.config import OptimizerConfig
from vlmrl.errors import UserError
from vlmrl.models.loading import load_model
from vlmrl.monitoring.run_checks import make_probe_prompts, measure_parity, tolerance
from vlmrl.policy.optimizers import adamw
from vlmrl.policy.policy import Policy

CAUSAL_ON_CPU = ("gemma3",)
"""vLLM's attention for the CPU leaves out that the tokens of an image see each other both ways."""

OTHER_PROCESS = ("aya_vision",)
"""vLLM 0.32 runs Cohere2 by patching the class of transformers, which breaks the policy next to it."""


def tied_policy(name):
    config = model_config(name)
    text = {**config.build.text, "tie_word_embeddings": True}
    config = config.model_copy(update={"build": config.build.model_copy(update={"text": text})})
    made = Policy(*load_model(config, CORPUS, seed=0), config)
    made.use_optimizer(adamw(made.trainable, lr=1e-2), OptimizerConfig(lr=1e-2))
    return made


@pytest.mark.parametrize("name", sorted({*IMAGE_FAMILIES} - {*FAMILIES, *OTHER_PROCESS}))
def test_log_probs_equal_the_trainers_before_and_after_a_sync(name):
    made = tied_policy(name)
    engine = engine_for(made)
    prompts = [ask_about_images(made, text="red " * n) for n in (3, 60)]
    prompts += [] if name in CAUSAL_ON_CPU else [converse(made)]
    if name in CAUSAL_ON_CPU:
        with pytest.raises(UserError, match=r"mean \|Δ log p\|"):
            measure_parity(engine, made, make_probe_prompts(made)).require(
                tolerance(made), "at start"
            )
    else:
        prompts += [*mix_images(made), *make_probe_prompts(made)]
    assert measure_parity(engine, made, prompts).max_abs < 1e-5
    change(made)
    assert measure_parity(engine, made, prompts).max_abs > 1e-2  # the engine does not know yet
    engine.sync(made)
    assert measure_parity(engine, made, prompts).max_abs < 1e-5
    engine.close()
