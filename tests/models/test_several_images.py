"""LLaVA-OneVision shows each of several images in one tile, as its authors do, or in a grid, as vLLM does."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch

from helpers.prompts import ask_about_images, logits
from helpers.small import loaded
from vlmrl.config import ModelConfig
from vlmrl.engines.vllm_parts.options import VllmOptions
from vlmrl.errors import UserError
from vlmrl.models.loading import load_model

SIZES = ((300, 90), (90, 300))


@pytest.fixture
def tiles():
    """A small model of the family that shows each of several images in one tile."""
    model = loaded("llava_onevision")
    processor = copy.deepcopy(model.processor)
    processor.image_processor.several_images = "tile"
    return model._replace(processor=processor)


def test_ids_tensors_and_logits_are_those_of_a_nested_list(tiles) -> None:
    """The list in a list is what `apply_chat_template` of transformers makes of several images."""
    ours = ask_about_images(tiles, *SIZES)
    inputs = tiles.processor(text=[ours.text], images=[list(ours.images)], return_tensors="pt")
    assert list(ours.encoded.ids) == inputs["input_ids"][0].tolist()
    assert ours.encoded.ids.count(tiles.model.config.image_token_id) == 34
    assert tiles.family.images_tokens(tiles.processor, SIZES) == 34
    assert torch.equal(ours.encoded.tensors["pixel_values"], inputs["pixel_values"])
    with torch.no_grad():
        theirs = tiles.model(**inputs).logits[0]
    assert (logits(tiles, [ours])[0] - theirs).abs().max() < 1e-5


def test_a_grid_and_tiles_go_in_one_batch_and_one_tile_alone(tiles) -> None:
    single, several = ask_about_images(tiles, SIZES[0]), ask_about_images(tiles, *SIZES)
    together = logits(tiles, [several, single])
    for row, prompt in zip(together, (several, single), strict=True):
        alone = logits(tiles, [prompt])[0]
        assert (row[-len(alone) :] - alone).abs().max() < 1e-5
    parts = tiles.family.media_of(tiles.model, several.encoded)
    lone = [tiles.family.tower_features(tiles.model, [part]) for part in parts]
    whole = tiles.family.tower_features(tiles.model, [several.encoded])
    joined = tiles.family.join_features([lone])
    assert all(map(torch.allclose, joined, whole))


def test_the_choice_is_saved_and_vllm_refuses_tiles(tiles, tmp_path) -> None:
    tiles.model.save_pretrained(tmp_path)
    tiles.processor.save_pretrained(tmp_path)
    again = load_model(ModelConfig(path=str(tmp_path)), (), 0)
    policy = SimpleNamespace(family=again.family, processor=again.processor)
    prompt = ask_about_images(tiles, *SIZES)
    with pytest.raises(UserError, match=r"set model\.several_images=grid"):
        VllmOptions(max_model_len=4096).require_room(policy, prompt, 1)
    grid = load_model(ModelConfig(path=str(tmp_path), several_images="grid"), (), 0)
    assert grid.family.unserved_prompt(grid.processor, 2) == ""
    assert grid.family.images_tokens(grid.processor, SIZES) == 74


def test_another_family_has_no_such_choice(tmp_path) -> None:
    other = loaded("idefics3")
    other.model.save_pretrained(tmp_path)
    other.processor.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"model\.several_images: this family shows each image"):
        load_model(ModelConfig(path=str(tmp_path), several_images="tile"), (), 0)
