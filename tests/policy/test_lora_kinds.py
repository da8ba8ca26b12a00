"""Adapters as peft has them: rsLoRA, DoRA, ranks of towers, chosen layers, first values."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from pydantic import ValidationError

from helpers.shared_forward import packed, rollouts_of
from helpers.small import CORPUS, model_config, policy
from vlmrl.config import LoraConfig
from vlmrl.engines.vllm_parts.options import VllmOptions
from vlmrl.errors import UserError
from vlmrl.models.loading import load_model
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.policy import adapter_folder
from vlmrl.policy.policy import Policy

KINDS: dict[str, dict[str, Any]] = {
    "rslora": {"rslora": True},
    "dora": {"dora": True},
    "ranks": {"ranks": {"vision": 2}, "towers": ["language", "vision"]},
    "gaussian": {"init": "gaussian"},
    "orthogonal": {"init": "orthogonal"},
    "all": {"rslora": True, "dora": True, "ranks": {"vision": 2}, "towers": ["vision", "language"]},
}


def trained(kind: str, **fields: Any) -> Policy:
    """A policy whose adapters have moved away from their first values."""
    made = policy(lora=LoraConfig(rank=4, **KINDS[kind]), **fields)
    batches = packed(rollouts_of(made))
    for _ in range(2):
        made.update(batches, Grpo(), lr=1e-2, progress=0.0)
    return made


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_policy_is_the_model_without_adapters(kind: str, dtype: str) -> None:
    plain, made = policy(dtype=dtype), policy(dtype=dtype, lora=LoraConfig(rank=4, **KINDS[kind]))
    micro = packed(rollouts_of(plain))[0].micro[0]
    with torch.no_grad():
        expected, found = (each.logprobs(micro)[0] for each in (plain, made))
    # What DoRA multiplies by is 1 but for rounding, which bfloat16 feels.
    assert (found - expected).abs().max() < (1e-5 if dtype == "float32" else 0.05)
    before = {name: w for unit in made.units(adapters="left out") for name, w in unit.items()}
    for name, weight in ((n, w) for unit in made.units() for n, w in unit.items()):
        torch.testing.assert_close(weight.float(), before[name].float(), atol=1e-6, rtol=1e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_adapter_is_merged_as_peft_does(kind: str) -> None:
    made = trained(kind)
    found = {name: w for unit in made.units() for name, w in unit.items()}
    expected = copy.deepcopy(made.adapter).merge_and_unload().state_dict()
    before = {name: w for unit in made.units(adapters="left out") for name, w in unit.items()}
    moved = 0
    for name, weight in found.items():
        torch.testing.assert_close(weight, expected[name], atol=1e-6, rtol=1e-5)
        moved += not weight.equal(before[name])
    assert moved > 5


@pytest.mark.parametrize("kind", KINDS)
def test_peft_reads_the_folder_that_is_written_and_so_do_we(kind: str, tmp_path: Path) -> None:
    made = trained(kind)
    state = made.training_state()
    adapter_folder.save(tmp_path / adapter_folder.FOLDER, made, state)
    base, _, _ = load_model(model_config(), CORPUS, seed=0)
    loaded = PeftModel.from_pretrained(base, tmp_path / adapter_folder.FOLDER)
    merged = loaded.merge_and_unload().state_dict()
    for name, weight in ((n, w) for unit in made.units() for n, w in unit.items()):
        torch.testing.assert_close(weight, merged[name], atol=1e-6, rtol=1e-5)
    again = adapter_folder.load(tmp_path)
    assert again.keys() == state.keys()
    assert all(weight.equal(again[name]) for name, weight in state.items())


def test_the_lengths_of_dora_train_and_start_as_those_of_the_rows() -> None:
    made = policy(lora=LoraConfig(rank=4, dora=True))
    lengths = {n: p.detach().clone() for n, p in made.named.items() if "magnitude" in n}
    assert lengths
    for name, length in lengths.items():
        weight = made.base.get_parameter(f"{name.partition('.lora_')[0]}.base_layer.weight")
        torch.testing.assert_close(length, weight.norm(dim=1))
    made.update(packed(rollouts_of(made)), Grpo(), lr=1e-2, progress=0.0)
    assert any(not made.named[name].equal(length) for name, length in lengths.items())


def test_layers_are_chosen_by_the_ends_of_their_paths() -> None:
    chosen = LoraConfig(rank=2, targets=["q_proj", "layers.0.mlp.*"])
    layers = {n.partition(".lora_")[0] for n in policy(lora=chosen).named}
    assert layers and all(n.endswith("q_proj") or ".layers.0.mlp." in n for n in layers)
    assert {n.rpartition(".")[2] for n in layers} == {"q_proj", "up_proj", "down_proj", "gate_proj"}
    with pytest.raises(
        UserError, match=r"lora.targets: expected ends .*'q_proj'.*got \['w_proj'\]"
    ):
        policy(lora=LoraConfig(rank=2, targets=["q_proj", "w_proj"]))


def test_what_does_not_fit_is_refused() -> None:
    for wrong in ({"ranks": {"vision": 2}}, {"init": "orthogonal", "rank": 3}, {"init": "pissa"}):
        with pytest.raises(ValidationError, match=r"ranks|even|init"):
            LoraConfig(**wrong)
    with pytest.raises(UserError, match="no adapter of DoRA; use 'merged'"):
        VllmOptions(lora="adapter").check(policy(lora=LoraConfig(rank=2, dora=True)))
