"""Voxtral: recordings of any length in chunks, against transformers' own processor and forward."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.prompts import ask, hf_inputs, logits
from helpers.shared_forward import micro_batch
from helpers.small import CORPUS, audio, loaded, mixed_batch, policy
from helpers.tekken import write_published
from vlmrl.config import BuildConfig, ModelConfig
from vlmrl.engines.base import Sampling
from vlmrl.engines.hf import Hf
from vlmrl.errors import UserError
from vlmrl.models.loading import load_model, load_processor
from vlmrl.schema.media import Audio

NAME = "voxtral"
CHUNK = 32000
"""Samples of a small model's chunk, two seconds; 25 tokens."""


@settings(max_examples=25)
@given(st.lists(st.integers(160, 3 * CHUNK), max_size=3))
def test_ids_and_mel_features_equal_those_of_the_hf_processor(lengths: list[int]) -> None:
    model = loaded(NAME)
    made = ask(model, *(audio(n / 16000, n) for n in lengths))

    theirs = hf_inputs(model, made)

    assert list(made.encoded.ids) == theirs["input_ids"][0].tolist()
    assert made.encoded.compact_ids.count(model.processor.audio_token_id) == len(lengths)
    assert made.encoded.position_ids.tolist() == [list(range(len(made.encoded.ids)))]
    assert bool(made.encoded.tensors) == bool(lengths)
    for key, tensor in made.encoded.tensors.items():
        assert torch.equal(tensor, theirs[key])


@pytest.mark.parametrize(("samples", "chunks"), [(100, 1), (CHUNK, 1), (CHUNK + 1, 2)])
def test_a_recording_fills_whole_chunks(samples: int, chunks: int) -> None:
    model = loaded(NAME)
    made = ask(model, audio(samples / 16000), audio(5.0)).encoded
    assert made.ids.count(model.model.config.audio_token_id) == 25 * (chunks + 3)
    assert made.tensors["input_features"].shape == (chunks + 3, 40, 200)


def test_a_published_folder_needs_no_further_package(tmp_path: Path) -> None:
    processor, family = load_processor(str(write_published(tmp_path)))
    tokenizer = processor.tokenizer
    text = "<s>[INST][BEGIN_AUDIO][AUDIO]Hello world 12[/INST]"
    encoded = family.encode(processor, text, [audio(30.5)])
    assert encoded.tensors["input_features"].shape == (2, 128, 3000)
    assert encoded.ids[:3] == (1, 3, 25) and encoded.ids[-1] == 4
    assert encoded.ids[3:753] == (24,) * 750
    assert tokenizer.decode(encoded.ids[753:-1]) == "Hello world 12"
    assert family.stop_token_ids(processor) == (2,)
    assert family.media_token_ids(processor) == (24, 25)

    saved = tmp_path / "saved"
    processor.save_pretrained(saved)
    (saved / "config.json").write_bytes((tmp_path / "config.json").read_bytes())
    again, _ = load_processor(str(saved))
    assert family.encode(again, text, [audio(30.5)]).ids == encoded.ids
    assert again.chat_template == processor.chat_template


def test_what_it_cannot_hear_is_a_clear_error() -> None:
    model = loaded(NAME)
    with pytest.raises(UserError, match=r"row-1.*8000 Hz.*data\.audio\.sampling_rate to 16000"):
        ask(model, Audio(np.zeros(8000, np.float32), 8000))
    made = ask(model, audio(1.0))
    with pytest.raises(UserError, match="1 audio placeholders for 0 audios"):
        model.family.encode(model.processor, made.text, [])
    for bad in ({"encoder_ffn_dim": 192}, {"max_source_positions": 50}, {"hidden_size": 64}):
        build = BuildConfig(family=NAME, audio=bad)
        with pytest.raises(UserError, match=r"build\.audio"):
            load_model(ModelConfig(build=build), CORPUS, seed=0)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("seconds", [[[]], [[1.0]], [[0.5, 2.5]], [[1.0], [], [0.5, 2.5]]], ids=str)
def test_logits_equal_the_hf_forward(seconds: list[list[float]], side: str) -> None:
    model = loaded(NAME)
    prompts = [
        ask(model, *(audio(s, i) for i, s in enumerate(each)), text="Where?" + " red" * len(each))
        for each in seconds
    ]
    inputs = [hf_inputs(model, p) for p in prompts]
    padded = model.processor.tokenizer.pad(
        {"input_ids": [each["input_ids"][0] for each in inputs]},
        padding_side=side,
        return_tensors="pt",
    )
    mels = [each["input_features"] for each in inputs if "input_features" in each]
    with torch.no_grad():
        heard = torch.cat(mels) if mels else None
        theirs = model.model(**padded, input_features=heard).logits
    for ours, other, mask in zip(
        logits(model, prompts), theirs, padded["attention_mask"].bool(), strict=True
    ):
        torch.testing.assert_close(ours[-int(mask.sum()) :], other[mask], atol=1e-5, rtol=0)


def test_the_encoder_hears_every_chunk_once() -> None:
    made = policy(NAME)
    heard: list[int] = []
    made.base.model.audio_tower.register_forward_hook(lambda m, a, out: heard.append(len(a[0])))
    micro = micro_batch(made)
    made.logprobs(micro)
    assert heard[-1] == sum(len(p.encoded.tensors.get("input_features", ())) for p in micro.prompts)


def test_greedy_tokens_equal_transformers_own_generate() -> None:
    made = policy(NAME)
    batch = mixed_batch(made)
    ours = Hf().start(made).generate(batch, Sampling(n=1, max_tokens=8, greedy=True))
    for p, (completion,) in zip(batch.prompts, ours.completions, strict=True):
        theirs = made.base.generate(
            **hf_inputs(made, p), max_new_tokens=8, do_sample=False,
            suppress_tokens=made.banned.tolist(),
        )  # fmt: skip
        assert list(completion.token_ids) == theirs[0, len(p.encoded.ids) :].tolist()
