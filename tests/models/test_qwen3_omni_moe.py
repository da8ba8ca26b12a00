"""What Qwen3-Omni alone has: fractions of positions, chunks of audio, DeepStack, files of experts."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from helpers.prompts import ask, image, logits
from helpers.small import audio, loaded, policy
from helpers.videos import video
from vlmrl.engines.hf import Hf
from vlmrl.models.base import Family
from vlmrl.models.loading import Loaded
from vlmrl.monitoring.run_checks import measure_parity
from vlmrl.schema import Prompt
from vlmrl.schema.media import Audio

NAME = "qwen3_omni_moe"
FRAME = 160
"""Samples of a frame of mel features."""
SHORT = 0.41
"""Seconds of whose chunk the last convolution reads beyond the end."""


@pytest.fixture(scope="module")
def biased() -> Loaded:
    """One whose convolutions have biases, as published ones do: they make something of zeros."""
    made = loaded(NAME)
    model, generator = copy.deepcopy(made.model), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.normal_(0, 0.3, generator=generator)
    return made._replace(model=model)


def hear(model: Loaded, *audios: Audio) -> torch.Tensor:
    """The logits [T, V] of transformers' own forward after these recordings."""
    text = ask(model, *audios).text
    inputs = model.processor(text=[text], audio=[a.samples for a in audios], return_tensors="pt")
    with torch.no_grad():
        return model.model(**inputs).logits[0]


@pytest.mark.parametrize(
    "seconds",
    [(SHORT,), (0.02,), (0.99,), (1.0,), (1.01,), (35.0,), (1.03, 2.11), (9.7, 1.2)],
    ids=str,
)
def test_audio_of_any_length_is_heard_as_transformers_does(
    biased: Loaded, seconds: tuple[float, ...]
) -> None:
    audios = [audio(length, seed) for seed, length in enumerate(seconds)]
    (ours,) = logits(biased, [ask(biased, *audios)])
    torch.testing.assert_close(ours, hear(biased, *audios), atol=1e-5, rtol=0)


def test_less_than_a_second_is_heard_as_alone_whatever_stands_beside_it(biased: Loaded) -> None:
    short, long = audio(SHORT), audio(2.0, 1)
    towers = biased.family.run_towers
    alone = towers(biased.model, [ask(biased, short).encoded]).audio[0]
    beside = towers(biased.model, [ask(biased, short, long).encoded, ask(biased, long).encoded])
    torch.testing.assert_close(beside.audio[0], alone, atol=1e-5, rtol=0)
    end = len(ask(biased, short).encoded.ids) - len(ask(biased).encoded.ids)
    theirs = [hear(biased, *heard)[:end] for heard in ([short], [short, long])]
    assert (theirs[0] - theirs[1]).abs().max() > 1e-4  # transformers fills it up to the longest


def test_audio_is_filled_up_to_whole_frames(biased: Loaded) -> None:
    cut = audio(1.2345)
    assert len(cut.samples) % FRAME
    full = Audio(np.pad(cut.samples, (0, -len(cut.samples) % FRAME)), cut.rate)
    ours, filled = (ask(biased, a).encoded for a in (cut, full))
    assert ours.ids == filled.ids
    for name, tensor in ours.tensors.items():
        assert torch.equal(tensor, filled.tensors[name])
    # So does transformers of all but the longest of a prompt.
    pair = [a.samples for a in (cut, audio(3.0))]
    theirs = biased.processor(text=[ask(biased, cut, cut).text], audio=pair, return_tensors="pt")
    frames = ours.tensors["feature_attention_mask"].sum()
    assert theirs["feature_attention_mask"][0].sum() == frames


def test_fractions_of_positions_are_kept_through_every_forward() -> None:
    made = policy(NAME)
    prompts = [ask(made, video(n, size=(84, 56), fps=3.0), text="red " * n) for n in (4, 7)]
    assert all((p.encoded.position_ids % 1 > 0.1).any() for p in prompts)
    assert prompts[0].encoded.next_position % 1 > 0.1
    assert measure_parity(Hf().start(made), made, prompts).max_abs < 1e-5

    whole = [rounded(prompt) for prompt in prompts]
    assert (logits(made_of(made), prompts) - logits(made_of(made), whole)).abs().max() > 1e-3


def rounded(prompt: Prompt) -> Prompt:
    encoded = dataclasses.replace(prompt.encoded, position_ids=prompt.encoded.position_ids.floor())
    return dataclasses.replace(prompt, encoded=encoded)


def made_of(made: Any) -> Loaded:
    return Loaded(made.base, made.processor, made.family)


def test_images_and_videos_are_added_to_layers_of_the_decoder_and_audio_is_not() -> None:
    model = loaded(NAME)
    prompt = ask(model, audio(1.2), video(4, size=(84, 56)), image((56, 84))).encoded
    features = model.family.run_towers(model.model, [prompt])
    counts = [prompt.ids.count(i) for i in visual_ids(model)]
    assert [len(x) for level in features.deepstack for x in level] == [
        len(x) for x in features.merged
    ]
    assert sum(len(x) for x in features.merged) == sum(counts) > 0
    (alone,) = (model.family.run_towers(model.model, [ask(model, audio(1.2)).encoded]),)
    assert alone.deepstack == () and len(alone.audio[0]) == prompt.ids.count(
        model.processor.audio_token_id
    )


def visual_ids(model: Loaded) -> tuple[int, ...]:
    return model.model.config.image_token_id, model.model.config.video_token_id


@pytest.mark.parametrize("normed", [True, False])
def test_weights_of_given_experts_are_those_of_the_router(normed: bool) -> None:
    family: Family = loaded(NAME).family
    router = copy.deepcopy(next(iter(family.routers(loaded(NAME).model).values())))
    router.norm_topk_prob = normed
    hidden = torch.randn(9, 64, generator=torch.Generator().manual_seed(0))
    out, weights, experts = router(hidden)
    torch.testing.assert_close(family.weigh(router, out, experts), weights)


def test_files_hold_each_expert_by_its_published_name(tmp_path: Path) -> None:
    made = loaded(NAME)
    made.family.save(made.model, str(tmp_path), made.model.state_dict())
    saved = safetensors.torch.load_file(tmp_path / "model.safetensors")
    experts = {name: w for name, w in saved.items() if ".experts." in name}
    assert len(experts) == 2 * 4 * 3  # layers, experts, projections
    first = "model.layers.0.mlp.experts.3."
    assert experts[f"{first}gate_proj.weight"].shape == (128, 64)
    assert experts[f"{first}down_proj.weight"].shape == (64, 128)
    named = made.family.export_names(made.model.state_dict())
    assert {name.removeprefix("thinker.") for name in named} >= saved.keys()
    assert {name.split(".")[0] for name in named} == {"thinker"}
