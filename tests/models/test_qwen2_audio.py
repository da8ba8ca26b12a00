"""Qwen2-Audio: recordings in prompts against Hugging Face's own processor and forward."""

import socket

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors import safe_open

from helpers.prompts import ask, logits
from helpers.shared_forward import GRADIENT, LOGPROBS, gaps, micro_batch, with_live_adapter
from helpers.small import CORPUS, advantages, audio, loaded, mixed_batch, policy, prompt
from vlmrl.config import BuildConfig, LoraConfig, ModelConfig
from vlmrl.data.prompt import make_prompt
from vlmrl.engines.base import Sampling
from vlmrl.engines.hf import Hf
from vlmrl.errors import UserError
from vlmrl.forward.packing import pack
from vlmrl.models.loading import Loaded, load_model
from vlmrl.schema import Media, Sample, Truth
from vlmrl.schema.media import Audio

NAME = "qwen2_audio"
HEARING = (NAME, "voxtral")
"""Families of which some tests are the same."""


def hf_inputs(model, prompts):
    """What the HF processor makes of the same prompts, left-padded."""
    heard = [m.samples for p in prompts for m in p.media]
    return model.processor(
        text=[p.text for p in prompts],
        audio=heard or None,
        sampling_rate=16000,
        padding=True,
        padding_side="left",
        return_tensors="pt",
    )


@settings(max_examples=25)
@given(st.lists(st.integers(1600, 32000), max_size=3))
def test_ids_and_mel_features_equal_those_of_the_hf_processor(lengths):
    model = loaded(NAME)
    made = ask(model, *(audio(n / 16000, n) for n in lengths))

    theirs = hf_inputs(model, [made])

    assert list(made.encoded.ids) == theirs["input_ids"][0].tolist()
    assert made.encoded.compact_ids.count(model.processor.audio_token_id) == len(lengths)
    assert made.encoded.position_ids.tolist() == [list(range(len(made.encoded.ids)))]
    assert bool(made.encoded.tensors) == bool(lengths)
    for key, tensor in made.encoded.tensors.items():
        assert torch.equal(tensor, theirs[key])


def test_a_second_of_sound_is_25_tokens():
    model = loaded(NAME)
    ids = ask(model, audio(1.0), audio(2.0)).encoded.ids
    assert ids.count(model.model.config.audio_token_id) == 25 + 50


def test_what_it_cannot_hear_is_a_clear_error():
    model = loaded(NAME)
    with pytest.raises(UserError, match=r"row-1.*at most 2 s, got 2\.50 s"):
        ask(model, audio(2.5))
    with pytest.raises(UserError, match=r"row-1.*8000 Hz.*data\.audio\.sampling_rate to 16000"):
        ask(model, Audio(np.zeros(8000, np.float32), 8000))
    with pytest.raises(UserError, match=r"row-1.*media token"):
        ask(model, text="Hear <|AUDIO|>")
    shown = Sample("row-2", "t", (Media("image", path="a.png"), "What?"), Truth())
    with pytest.raises(UserError, match=r"row-2.*a\.png is an image.*audio"):
        make_prompt(shown, [Image.new("RGB", (28, 28))], model.family, model.processor)
    made = ask(model, audio(1.0))
    with pytest.raises(UserError, match="1 audio placeholders for 0 audios"):
        model.family.encode(model.processor, made.text, [])
    for positions in (120, "x"):
        bad = BuildConfig(family=NAME, audio={"max_source_positions": positions})
        with pytest.raises(UserError, match=r"build\.audio"):
            load_model(ModelConfig(build=bad), CORPUS, seed=0)


@pytest.mark.parametrize("rows", [[0], [1], [2], [0, 1, 2, 3]], ids=str)
def test_logits_equal_the_hf_forward(rows):
    model = loaded(NAME)
    prompts = [mixed_batch(model).prompts[row] for row in rows]
    with torch.no_grad():
        theirs = model.model(**hf_inputs(model, prompts)).logits
    for ours, other, p in zip(logits(model, prompts), theirs, prompts, strict=True):
        n = len(p.encoded.ids)
        torch.testing.assert_close(ours[-n:], other[-n:], atol=1e-5, rtol=0)


def test_rows_that_repeat_and_skip_prompts_equal_each_prompt_alone():
    model = loaded(NAME)
    prompts, rows = mixed_batch(model).prompts, [0, 0, 3, 1, 2, 1]
    alone = [logits(model, [p])[0] for p in prompts]
    for row, r in zip(logits(model, prompts, rows), rows, strict=True):
        torch.testing.assert_close(row[-len(alone[r]) :], alone[r], atol=1e-5, rtol=0)


def test_the_encoder_hears_every_recording_once():
    made = policy(NAME)
    heard = []
    made.base.model.audio_tower.register_forward_hook(lambda m, a, out: heard.append(len(a[0])))
    made.logprobs(micro_batch(made))
    assert heard[-1] == 4  # before it the two forwards were compared


def test_log_probs_of_the_hf_engine_are_the_trainers_and_no_media_token_is_drawn():
    made = policy(NAME)
    engine = Hf().start(made)
    with torch.no_grad():  # the likeliest token
        made.family.head(made.base).weight[made.banned] *= 30
    rollouts = engine.generate(mixed_batch(made), Sampling(n=3, max_tokens=6, seed=1))
    (packed,) = pack(rollouts, advantages(rollouts), updates=1, micro_tokens=700, max_tokens=6)
    for micro in packed.micro:
        with torch.no_grad():
            ours, _ = made.logprobs(micro)
        assert (ours - micro.sampling_logprobs)[micro.mask].abs().max() < 2e-5
    drawn = {t for group in rollouts.completions for c in group for t in c.token_ids}
    assert len(made.banned) == 3 and not drawn & set(made.banned.tolist())


def test_greedy_tokens_equal_transformers_own_generate():
    made = policy(NAME)
    engine = Hf().start(made)
    batch = mixed_batch(made)
    ours = engine.generate(batch, Sampling(n=1, max_tokens=8, greedy=True))
    for p, (completion,) in zip(batch.prompts, ours.completions, strict=True):
        theirs = made.base.generate(
            **hf_inputs(made, [p]), max_new_tokens=8, do_sample=False,
            suppress_tokens=made.banned.tolist(),
        )  # fmt: skip
        assert list(completion.token_ids) == theirs[0, len(p.encoded.ids) :].tolist()


@pytest.mark.parametrize(
    "training",
    [
        {},
        {"gradient_checkpointing": True},
        {"freeze": ["audio"]},
        {"lora": LoraConfig(rank=4, towers=["audio", "projector", "language"])},
    ],
    ids=["plain", "checkpointing", "frozen", "lora"],
)
@pytest.mark.parametrize("name", HEARING)
def test_the_shared_forward_equals_the_plain_one(name, training):
    made = with_live_adapter(policy(name, **training))
    assert made._can_share
    logprobs, gradient = gaps(made, micro_batch(made))
    assert logprobs < LOGPROBS
    assert gradient < GRADIENT


@pytest.mark.parametrize("name", HEARING)
def test_every_parameter_is_in_one_tower_and_every_linear_layer_takes_an_adapter(name):
    model = loaded(name)
    towers, family = model.family.towers, model.family
    for key, _ in model.model.named_parameters():
        assert sum(key.startswith(prefixes) for prefixes in towers.values()) == 1, key
    for tower, prefixes in towers.items():
        linear = {
            key.rpartition(".")[2]
            for key, module in model.model.named_modules()
            if isinstance(module, torch.nn.Linear) and key.startswith(prefixes)
        }
        assert linear - {"lm_head"} == set(family.lora_targets[tower])
    for layers in family.decoder_layers:
        assert len(model.model.get_submodule(layers)) == 2


def test_saved_and_loaded_again_it_is_the_same_to_the_bit(tmp_path, monkeypatch):
    built = policy(NAME)
    built.save(str(tmp_path))
    monkeypatch.setattr(socket.socket, "connect", None)

    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert {  # those of Qwen2-Audio-7B
        "audio_tower.conv1.weight",
        "multi_modal_projector.linear.weight",
        "language_model.model.embed_tokens.weight",
        "language_model.model.layers.0.self_attn.q_proj.weight",
        "language_model.lm_head.weight",
    } <= names

    read = load_model(ModelConfig(path=str(tmp_path)))

    built = Loaded(built.base.eval(), built.processor, built.family)
    ours, theirs = (prompt(model, 1, images=2) for model in (built, read))
    assert ours.text == theirs.text and ours.encoded.ids == theirs.encoded.ids
    assert torch.equal(logits(built, [ours]), logits(read, [theirs]))
