"""GLM-4.5V: files as published, the router's bias, turns that end with the next role."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch

from helpers.prompts import ask_about_images
from helpers.shared_forward import packed, rollouts_of
from helpers.small import loaded, policy
from vlmrl.config import LoraConfig
from vlmrl.errors import UserError
from vlmrl.parts.algorithms.grpo import Grpo

NAME = "glm4v_moe"
ROUTER = "model.language_model.layers.1.mlp.gate."


def test_vllm_is_given_what_transformers_writes_for_published_files(tmp_path: Path) -> None:
    made = loaded(NAME)
    made.family.save(made.model, str(tmp_path), made.model.state_dict())
    saved = safetensors.torch.load_file(tmp_path / "model.safetensors")
    given = made.family.export_names(made.model.state_dict())
    assert given.keys() == saved.keys()
    assert "model.language_model.layers.1.mlp.experts.3.up_proj.weight" in given
    for name, weight in saved.items():
        assert torch.equal(given[name], weight), name


def test_an_update_trains_router_and_experts_but_not_the_bias_of_the_choice() -> None:
    made = policy(NAME)
    before = {name: weight.clone() for name, weight in made.base.state_dict().items()}
    made.update(packed(rollouts_of(made)), Grpo(), lr=1e-2, progress=0.0)
    after = made.base.state_dict()
    moved = {name for name, weight in before.items() if not torch.equal(after[name], weight)}
    assert {f"{ROUTER}weight", f"{ROUTER[:-5]}experts.gate_up_proj"} <= moved
    assert f"{ROUTER}e_score_correction_bias" in before.keys() - moved


def test_a_turn_ends_with_the_role_that_comes_next() -> None:
    made = loaded(NAME)
    assert (
        ask_about_images(made, text="Where?").text == "[gMASK]<sop><|user|>\nWhere?<|assistant|>\n"
    )
    shown = made.family.reply(made.processor, ["a crop"])
    assert shown == "\n<tool_response>\na crop\n</tool_response><|assistant|>\n"


def test_four_bits_are_refused() -> None:
    with pytest.raises(UserError, match=r"experts\.gate_up_proj.* no 4-bit layer"):
        policy(NAME, lora=LoraConfig(rank=4, towers=["language"]), quantization="nf4")
