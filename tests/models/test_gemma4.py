"""Gemma 4: videos and audio, layers that share keys, images seen both ways, experts, bounded logits."""

from __future__ import annotations

import functools

import pytest
import torch

from helpers.prompts import (
    ask,
    ask_about_images,
    assert_as_transformers,
    assert_rows_alone,
    hf_inputs,
    image,
    logits,
)
from helpers.shared_forward import (
    GRADIENT,
    LOGPROBS,
    gaps,
    micro_batch,
    with_live_adapter,
)
from helpers.small import CORPUS, TEXT, audio, loaded, policy_by
from helpers.videos import video
from vlmrl.config import BuildConfig, LoraConfig, ModelConfig
from vlmrl.errors import UserError
from vlmrl.models.loading import Loaded, load_model
from vlmrl.parts.families.gemma4 import Gemma4
from vlmrl.policy.policy import Policy

CLOSE = {"atol": 1e-5, "rtol": 0}
SHARING = {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
}
KINDS = {
    "layers that share keys": SHARING,
    "images both ways": {"use_bidirectional_attention": "vision"},
    "experts": {
        "enable_moe_block": True,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 24,
        "hidden_size_per_layer_input": 0,
    },
    "keys as values": {
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
        "final_logit_softcapping": None,
        "hidden_size_per_layer_input": 0,
    },
}
"""Fields of the text config in which published checkpoints differ."""
CASES = {
    "audio": lambda: [audio(0.7)],
    "two audios": lambda: [audio(1.9, 1), audio(0.4, 2)],
    "a video": lambda: [video(3, fps=2.0, size=(112, 84))],
    "two videos": lambda: [video(1, fps=2.0, size=(84, 84)), video(5, fps=0.1, size=(60, 140))],
    "all": lambda: [
        audio(0.5),
        image(seed=1),
        video(2, fps=1.0, size=(84, 84)),
        audio(1.1),
        image(),
    ],
}


def config_of(kind: str, **fields: object) -> ModelConfig:
    text = {**TEXT, **KINDS.get(kind, {})}
    return ModelConfig(build=BuildConfig(family="gemma4", text=text, vocab_size=320), **fields)


@functools.cache
def built(kind: str) -> Loaded:
    return load_model(config_of(kind), CORPUS, seed=0)


def policy_of(kind: str, **fields: object) -> Policy:
    return policy_by(config_of(kind, **fields))


@pytest.mark.parametrize("case", CASES)
def test_videos_and_audio_are_encoded_and_computed_as_by_transformers(case: str) -> None:
    model = loaded("gemma4")
    assert_as_transformers(model, ask(model, *CASES[case]()))


def test_rows_of_mixed_media_equal_each_prompt_alone() -> None:
    model = loaded("gemma4")
    prompts = [ask(model, *CASES[c]()) for c in ("all", "audio", "a video")]
    prompts += [ask_about_images(model, (60, 60)), ask_about_images(model)]
    assert_rows_alone(model, prompts, [4, 0, 2, 2, 1, 3])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [[], [(64, 48)], [(300, 90), (100, 100)]], ids=str)
def test_each_kind_of_checkpoint_computes_as_transformers(
    kind: str, sizes: list[tuple[int, int]]
) -> None:
    model = built(kind)
    made = ask_about_images(model, *sizes)
    with torch.no_grad():
        expected = model.model(**hf_inputs(model, made)).logits
    torch.testing.assert_close(logits(model, [made]), expected, **CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("training", [{}, {"gradient_checkpointing": True}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_shared_as_it_is_computed_plainly(
    kind: str, training: dict[str, bool]
) -> None:
    made = policy_of(kind, **training)
    logprobs, gradient = gaps(made, micro_batch(made))
    assert logprobs < LOGPROBS
    assert gradient < GRADIENT


@pytest.mark.slow
def test_adapters_beside_experts_are_shared_too() -> None:
    made = with_live_adapter(policy_of("experts", lora=LoraConfig(rank=4, towers=["language"])))
    logprobs, gradient = gaps(made, micro_batch(made))
    assert logprobs < LOGPROBS
    assert gradient < GRADIENT


def test_weights_of_given_experts_are_the_routers_own() -> None:
    model = built("experts").model
    (router, *_) = Gemma4().routers(model).values()
    router.per_expert_scale.data.uniform_(0.5, 2)
    probabilities, weights, experts = router(torch.randn(5, 64))
    torch.testing.assert_close(Gemma4().weigh(router, probabilities, experts), weights)


def test_each_frame_of_a_video_follows_its_time() -> None:
    model = loaded("gemma4")
    made = ask(model, video(3, fps=0.05, size=(84, 84)))
    text = model.processor.tokenizer.decode(made.encoded.ids)
    frame = f"<|image>{'<|video|>' * 64}<image|>"
    assert f"00:00 {frame} 00:20 {frame} 00:40 {frame}Where" in text


def test_a_model_without_an_audio_tower_says_so() -> None:
    model = loaded("gemma4")
    without = type(model.model.config)(vision_config=model.model.config.vision_config)
    model.family.adopt(model.processor, without)
    with pytest.raises(UserError, match="has no audio tower"):
        ask(model, audio(0.5))
    model.family.adopt(model.processor, model.model.config)
    with pytest.raises(UserError, match=r"at most 30.0 s, got 31.00 s"):
        ask(model, audio(31))


def test_logits_are_bounded() -> None:
    made = policy_of("")
    made.base.lm_head.weight.data.mul_(2000)
    batch = micro_batch(made)
    with torch.no_grad():
        ours, _ = made.logprobs(batch)
    assert torch.isfinite(ours).all() and -66 < ours[batch.mask].min() < -30
