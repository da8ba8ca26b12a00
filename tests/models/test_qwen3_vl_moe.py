"""Mixtures of experts: gradients of router and experts, files as published, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
import transformers

from helpers.shared_forward import packed, rollouts_of
from helpers.small import CORPUS, loaded, model_config, policy
from vlmrl.config import LoraConfig
from vlmrl.errors import UserError
from vlmrl.models.loading import load_model
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.policy.policy import Policy

NAME = "qwen3_vl_moe"


def updated(made: Policy) -> dict[str, torch.Tensor]:
    """Which weights an update on completions of its own moved, by name."""
    before = {n: p.detach().clone() for n, p in made.base.named_parameters()}
    made.update(packed(rollouts_of(made)), Grpo(), lr=1e-2, progress=0.0)
    return {n: p.detach() for n, p in made.base.named_parameters() if not torch.equal(p, before[n])}


def test_router_and_experts_get_the_gradient_of_a_sum_over_all_experts() -> None:
    block = load_model(model_config(NAME), CORPUS, seed=0).model.model.language_model.layers[0].mlp
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 40, 64, generator=generator, requires_grad=True)
    signs = torch.randn(40, 64, generator=generator)
    weights = {**dict(block.named_parameters()), "x": x}

    odds = (x[0] @ block.gate.weight.T).exp()
    chosen = odds >= odds.topk(2, -1).values[:, -1:]
    share = odds * chosen / (odds * chosen).sum(-1, keepdim=True)
    gate, up = torch.einsum("th,eoh->teo", x[0], block.experts.gate_up_proj).chunk(2, -1)
    each = torch.einsum("teo,eho->teh", F.silu(gate) * up, block.experts.down_proj)
    expected = (each * share[..., None]).sum(1)

    found = block(x)[0]
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    ours, theirs = (
        torch.autograd.grad((out * signs).sum(), list(weights.values()))
        for out in (found, expected)
    )
    for name, a, b in zip(weights, ours, theirs, strict=True):
        assert b.abs().max() > 1e-3, name
        torch.testing.assert_close(a, b, atol=2e-6, rtol=1e-5, msg=name)


def test_experts_that_train_are_computed_in_the_dtype_of_autocast() -> None:
    made = policy(NAME, dtype="bfloat16")
    block = made.base.model.language_model.layers[0].mlp
    assert block.experts.gate_up_proj.dtype == torch.float32
    x = torch.randn(1, 40, 64, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        out = block(x)
    grads = torch.autograd.grad(out.sum(), list(block.experts.parameters()))
    assert all(g.dtype == torch.float32 and g.abs().max() > 0 for g in grads)
    for parameter in block.experts.parameters():
        parameter.data = parameter.data.bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(block(x), out)


def test_an_update_trains_router_and_experts_and_has_no_balancing_loss() -> None:
    found = []
    for coefficient in (0.0, 1000.0):
        made = policy(NAME)
        text = made.base.config.text_config
        text.router_aux_loss_coef, text.output_router_logits = coefficient, True
        found.append(updated(made))
    plain, weighted = found
    for leaf in ("mlp.gate.weight", "mlp.experts.gate_up_proj", "mlp.experts.down_proj"):
        assert {f"model.language_model.layers.{n}.{leaf}" for n in range(2)} <= plain.keys()
    assert plain.keys() == weighted.keys()
    assert all(torch.equal(weighted[name], weight) for name, weight in plain.items())


def test_an_adapter_trains_attention_and_leaves_router_and_experts() -> None:
    made = policy(NAME, lora=LoraConfig(rank=4, towers=["language"]))
    layers = {n.split(".lora_")[0] for n in made.named}
    assert {layer.rpartition(".")[2] for layer in layers} == {
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
    }
    assert updated(made).keys() <= made.named.keys()


def test_four_bits_are_refused_since_experts_are_no_linear_layers() -> None:
    with pytest.raises(UserError, match=r"experts\.gate_up_proj.* no 4-bit layer"):
        policy(NAME, lora=LoraConfig(rank=4, towers=["language"]), quantization="nf4")


def test_files_hold_experts_as_published_ones_do(tmp_path: Path) -> None:
    made = loaded(NAME)
    made.family.save(made.model, str(tmp_path), made.model.state_dict())
    saved = safetensors.torch.load_file(tmp_path / "model.safetensors")
    experts = {name: weight for name, weight in saved.items() if ".experts." in name}
    shapes = {name.rpartition(".")[2]: tuple(weight.shape) for name, weight in experts.items()}
    assert shapes == {"gate_up_proj": (4, 64, 256), "down_proj": (4, 128, 64)}
    for name, weight in experts.items():
        assert torch.equal(weight.mT, made.model.get_parameter(name)), name
    assert made.family.export_names(made.model.state_dict()).keys() >= saved.keys()


@pytest.mark.parametrize("width", [64, 32])
def test_square_experts_are_refused(width: int) -> None:
    build = model_config(NAME).build
    build = build.model_copy(update={"text": {**build.text, "moe_intermediate_size": width}})
    with pytest.raises(UserError, match=f"moe_intermediate_size: expected .*, got {width}"):
        load_model(model_config(NAME).model_copy(update={"build": build}), CORPUS)


def test_vllm_is_told_whether_the_head_is_tied_where_it_looks(tmp_path: Path) -> None:
    made = loaded(NAME)
    made.family.export_config(made.model, str(tmp_path))
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["text_config"]["tie_word_embeddings"] is False
    assert config["text_config"]["norm_topk_prob"] is True
    assert (
        transformers.Qwen3VLMoeTextConfig().tie_word_embeddings is True
    )  # what else it would take
