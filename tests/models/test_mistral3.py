"""Mistral Small: images of any shape, those that it refuses, and files as published."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch

from helpers.prompts import ask_about_images, logits
from helpers.small import loaded
from vlmrl.errors import UserError


def test_each_row_of_an_image_ends_with_a_token() -> None:
    made = loaded("mistral3")
    ids = ask_about_images(made, (90, 60)).encoded.ids
    row = "[IMG]" * 4
    assert f"[INST]{row}[IMG_BREAK]{row}[IMG_BREAK]{row}[IMG_END]W" in made.processor.decode(ids)


def test_an_image_of_which_a_side_vanishes_is_refused() -> None:
    made = loaded("mistral3")
    with pytest.raises(UserError, match="700x1 pixels is refused"):
        made.family.image_tokens(made.processor, 700, 1)
    with pytest.raises(UserError, match="the images are refused"):
        ask_about_images(made, (700, 1))


def test_an_image_sees_nothing_of_those_beside_it() -> None:
    made = loaded("mistral3")
    small, both = (ask_about_images(made, *s) for s in ([(60, 60)], [(60, 60), (224, 100)]))
    length = small.encoded.ids.index(made.processor.image_end_token_id) + 1
    apart = logits(made, [small])[0, :length] - logits(made, [both])[0, :length]
    assert apart.abs().max() < 1e-5


def test_files_have_the_published_names(tmp_path: Path) -> None:
    made = loaded("mistral3")
    made.family.save(made.model, str(tmp_path), made.model.state_dict())
    saved = safetensors.torch.load_file(tmp_path / "model.safetensors")
    layer = "language_model.model.layers.1.self_attn.q_proj.weight"
    assert torch.equal(saved[layer], made.model.state_dict()[f"model.language_model.{layer[21:]}"])
    heads = {name.partition(".")[0] for name in saved}
    assert heads == {"language_model", "vision_tower", "multi_modal_projector"}
