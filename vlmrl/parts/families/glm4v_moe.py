"""GLM-4.5V: GLM-4.1V's tower, prompts and positions before a mixture of experts.

Source: Hong et al. 2025, "GLM-4.5V and GLM-4.1V-Thinking", arXiv:2507.01006.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from vlmrl.models.base import ATTENTION_LINEAR
from vlmrl.parts.families.glm4v import Glm4v
from vlmrl.parts.families.small.qwen_models import SmallQwenModel


@dataclass(frozen=True)
class Glm4vMoe(Glm4v):
    """The family of checkpoints of model type `glm4v_moe`."""

    model_types: ClassVar[tuple[str, ...]] = ("glm4v_moe",)
    lora_targets: ClassVar[Mapping[str, tuple[str, ...]]] = {
        # Attention alone: peft 0.21 reads any `gate_proj` of this model in a folder as fused experts.
        "vision": ("qkv", "proj"),
        "projector": ("proj",),
        "language": ATTENTION_LINEAR,
    }
    router: ClassVar[str] = "mlp.gate"
    small: ClassVar[SmallQwenModel] = replace(
        Glm4v.small,
        model="Glm4vMoeForConditionalGeneration",
        config="Glm4vMoeConfig",
        text={
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "use_qk_norm": False,  # as published; only vLLM asks
        },
    )

    def weigh(self, router: Any, logits: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """Return the sigmoids of these experts over their sum, scaled, see `Family.weigh`."""
        weights = logits.sigmoid().gather(1, experts)
        if router.norm_topk_prob:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return weights * router.routed_scaling_factor

    def export_names(self, named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the weights with each expert's own, as in published checkpoints, which vLLM expects."""
        return split_experts(named)


def split_experts(named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return weights by name, those of a layer's experts as one for each expert and projection."""
    weights: dict[str, torch.Tensor] = {}
    for name, weight in named.items():
        layer, experts, leaf = name.partition(".mlp.experts.")
        if not experts:
            weights[name] = weight
            continue
        leaves = ("gate_proj", "up_proj") if leaf == "gate_up_proj" else (leaf,)
        for number, expert in enumerate(weight):
            for part, own in zip(leaves, expert.chunk(len(leaves)), strict=True):
                weights[f"{layer}{experts}{number}.{part}.weight"] = own
    return weights
