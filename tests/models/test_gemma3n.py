"""Gemma 3n: images and audio through towers of its own, layers that share keys, embeddings for each layer."""

from __future__ import annotations

import dataclasses
import functools
import sys
from pathlib import Path

import pytest
import torch
import transformers

from helpers.prompts import (
    ask,
    ask_about_images,
    assert_as_transformers,
    assert_rows_alone,
    hf_inputs,
    image,
    logits,
)
from helpers.shared_forward import GRADIENT, LOGPROBS, gaps, micro_batch, packed, rollouts_of
from helpers.small import CORPUS, TEXT, audio, loaded, policy_by
from vlmrl.config import BuildConfig, ModelConfig, OptimizerConfig
from vlmrl.errors import MissingExtra, UserError
from vlmrl.models.loading import Loaded, load_model
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.policy.optimizers import adamw
from vlmrl.policy.policy import Policy

CLOSE = {"atol": 1e-5, "rtol": 0}
SHARING = {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
}
CASES = {
    "audio": lambda: [audio(0.7)],
    "two audios": lambda: [audio(1.9, 1), audio(0.4, 2)],
    "all": lambda: [audio(0.5), image(seed=1), audio(1.13), image((300, 90))],
}


def config_of(text: object = (), vision: object = (), **fields: object) -> ModelConfig:
    sizes = {"text": {**TEXT, **dict(text)}, "vision": dict(vision)}
    return ModelConfig(build=BuildConfig(family="gemma3n", **sizes, vocab_size=320), **fields)


@functools.cache
def sharing() -> Loaded:
    return load_model(config_of(SHARING), CORPUS, seed=0)


def policy_of(text: object = (), **fields: object) -> Policy:
    return policy_by(config_of(text, **fields))


@pytest.mark.parametrize("case", CASES)
def test_audio_and_images_are_encoded_and_computed_as_by_transformers(case: str) -> None:
    model = loaded("gemma3n")
    assert_as_transformers(model, ask(model, *CASES[case]()))


def test_rows_of_mixed_media_equal_each_prompt_alone() -> None:
    model = loaded("gemma3n")
    prompts = [ask(model, *CASES[c]()) for c in ("all", "audio", "two audios")]
    prompts += [ask_about_images(model, (60, 60)), ask_about_images(model)]
    assert_rows_alone(model, prompts, [4, 0, 2, 2, 1, 3])


def test_a_recording_is_heard_as_in_its_own_turn_however_long_the_next_turns_is() -> None:
    model = loaded("gemma3n")
    first, second = (ask(model, audio(seconds, seed=3)).encoded for seconds in (0.62, 1.5))
    family, base = model.family, model.model
    with torch.no_grad():
        (both,) = family.run_towers(base, [family.join(first, second)])
        alone = torch.cat(family.run_towers(base, [first]) + family.run_towers(base, [second]))
    torch.testing.assert_close(both, alone, **CLOSE)


def test_each_medium_stands_alone_in_order() -> None:
    model = loaded("gemma3n")
    made = ask(model, *CASES["all"]()).encoded
    media = model.family.media_of(model.model, made)
    assert [sorted(m.tensors)[0] for m in media] == ["input_features", "pixel_values"] * 2
    with torch.no_grad():
        (whole,) = model.family.run_towers(model.model, [made])
        parts = [model.family.run_towers(model.model, [m])[0] for m in media]
    torch.testing.assert_close(torch.cat(parts), whole, **CLOSE)


def test_layers_that_share_keys_compute_as_transformers() -> None:
    made = ask_about_images(sharing(), (64, 48))
    with torch.no_grad():
        expected = sharing().model(**hf_inputs(sharing(), made)).logits
    torch.testing.assert_close(logits(sharing(), [made]), expected, **CLOSE)


def test_layers_that_share_keys_are_sampled_with_the_trainers_log_probs() -> None:
    made = policy_of(SHARING)
    for micro in packed(rollouts_of(made))[0].micro:
        with torch.no_grad():
            ours, _ = made.logprobs(micro)
        assert (ours - micro.sampling_logprobs)[micro.mask].abs().max() < 1e-5


@pytest.mark.parametrize("name", ["gemma3n", "gemma4"])
def test_layers_that_share_keys_are_trained_in_low_memory(name: str) -> None:
    gradients = []
    for setting in ("off", "low_memory"):
        build = BuildConfig(family=name, text={**TEXT, **SHARING}, vocab_size=320)
        config = ModelConfig(build=build)
        made = Policy(*load_model(config, CORPUS, seed=0), config)
        optimizer = OptimizerConfig(shared_forward=setting, max_grad_norm=1e9)
        made.use_optimizer(adamw(made.trainable, lr=0.0), optimizer)
        micro = micro_batch(made, images=(1, 0), counts=(2, 1))
        batch = dataclasses.replace(packed(rollouts_of(made))[0], micro=(micro,))
        made.update([batch], Grpo(), lr=0.0, progress=0.0)
        grads = (p.grad for p in made.trainable if p.grad is not None)
        gradients.append(torch.cat([grad.flatten() for grad in grads]))
    assert (gradients[1] - gradients[0]).norm() < 3 * GRADIENT * gradients[0].norm()


@pytest.mark.slow
def test_layers_that_share_keys_are_shared_as_they_are_computed_plainly() -> None:
    made = policy_of(SHARING, gradient_checkpointing=True)
    logprobs, gradient = gaps(made, micro_batch(made))
    assert logprobs < LOGPROBS
    assert gradient < GRADIENT


def test_embeddings_for_each_layer_are_read() -> None:
    model = load_model(config_of(), CORPUS, seed=0)
    made = ask(model)
    before = logits(model, [made])
    model.model.model.language_model.embed_tokens_per_layer.weight.data.neg_()
    assert (logits(model, [made]) - before).abs().max() > 1e-3


def test_training_mode_computes_what_evaluation_does_and_clips_no_weights() -> None:
    made = policy_of()
    for name, weight in made.base.named_parameters():
        if "_coefs" in name:
            weight.data.add_(200.0)  # transformers clips them at 120 in training mode
    micro = micro_batch(made, images=(1,), counts=(2,))
    with torch.no_grad():
        trained = made.logprobs(micro)[0]
        made.base.eval()
        torch.testing.assert_close(made.logprobs(micro)[0], trained, atol=0, rtol=0)
    weights = dict(made.base.named_parameters())
    assert all(w.min() > 190 for name, w in weights.items() if "_coefs" in name)


def test_the_tower_keeps_no_statistics_and_drops_nothing() -> None:
    tower = loaded("gemma3n").model.model.vision_tower
    assert not [name for name, _ in tower.named_buffers()]
    drops = [m for m in tower.modules() if isinstance(m, torch.nn.Dropout)]
    assert drops and not any(m.p for m in drops)


def test_the_published_tower_is_read_again_and_its_config_stays(tmp_path: Path) -> None:
    vision = {"architecture": "mobilenetv5_300m_enc", "hidden_size": 2048}
    model = load_model(config_of(vision=vision), CORPUS, seed=0)
    tower = model.model.model.vision_tower.timm_model
    assert type(tower).__name__ == "MobileNetV5Encoder"
    model.family.save(model.model, str(tmp_path), model.model.state_dict())
    model.processor.save_pretrained(tmp_path)
    stated = (tmp_path / "config.json").read_text()

    read = load_model(ModelConfig(path=str(tmp_path)))
    theirs = transformers.AutoModelForMultimodalLM.from_pretrained(tmp_path)

    read.family.save(read.model, str(tmp_path), read.model.state_dict())
    assert (tmp_path / "config.json").read_text() == stated
    made = ask_about_images(read, (64, 48))
    with torch.no_grad():
        expected = theirs(**hf_inputs(read, made)).logits
    torch.testing.assert_close(logits(read, [made]), expected, **CLOSE)


def test_audio_that_has_no_place_is_refused() -> None:
    model = loaded("gemma3n")
    with pytest.raises(UserError, match=r"at most 3.2 s, got 3.30 s"):
        ask(model, audio(3.3))
    with pytest.raises(UserError, match=r"more than 512 samples, got 480"):
        ask(model, audio(0.03))
    ask(model, audio(3.2)), ask(model, audio(513 / 16000))


def test_a_language_model_alone_is_refused(tmp_path: Path) -> None:
    model = loaded("gemma3n")
    model.family.save(model.model, str(tmp_path), model.model.state_dict())
    model.processor.save_pretrained(tmp_path)
    weights = {"language": str(tmp_path)}
    build = BuildConfig(family="gemma3n", text=TEXT, vocab_size=320, weights=weights)
    with pytest.raises(UserError, match=r"weights\.language: .* whole model as model\.path"):
        load_model(ModelConfig(build=build), CORPUS)


def test_without_timm_a_build_and_a_checkpoint_name_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded("gemma3n")
    model.family.save(model.model, str(tmp_path), model.model.state_dict())
    model.processor.save_pretrained(tmp_path)
    monkeypatch.setitem(sys.modules, "timm", None)
    for config in (config_of(), ModelConfig(path=str(tmp_path))):
        with pytest.raises(MissingExtra, match=r"pip install 'vlmrl-perception\[timm\]'$"):
            load_model(config, CORPUS)
