"""Qwen3.5 and 3.6 with a mixture of experts, of which one sees every token.

Source: transformers 5.23, `qwen3_5_moe`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from vlmrl.parts.families.qwen3_5 import Qwen35
from vlmrl.parts.families.qwen3_vl_moe import share_chosen
from vlmrl.parts.families.small.qwen_models import SmallQwenModel


@dataclass(frozen=True)
class Qwen35Moe(Qwen35):
    """The family of checkpoints of model type `qwen3_5_moe`.

    The experts of a layer are two weights, [experts, 2 * width, H] and [experts, H, width], in files too.
    """

    model_types: ClassVar[tuple[str, ...]] = ("qwen3_5_moe",)
    lora_targets: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **Qwen35.lora_targets,
        "language": (*Qwen35.lora_targets["language"], "shared_expert_gate"),
    }
    router: ClassVar[str] = "mlp.gate"
    saves_exports: ClassVar[bool] = True  # transformers writes each expert by itself
    small: ClassVar[SmallQwenModel] = replace(
        Qwen35.small,
        model="Qwen3_5MoeForConditionalGeneration",
        config="Qwen3_5MoeConfig",
        text={
            **Qwen35.small.text,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 128,
            "shared_expert_intermediate_size": 64,
        },
    )

    def weigh(self, router: object, logits: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """Return the softmax over these experts alone, see `Family.weigh`."""
        return share_chosen(logits, experts)
