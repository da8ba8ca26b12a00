"""Qwen3.5 and 3.6: Qwen3-VL's prompts and a tower without DeepStack, gated delta-nets between attentions.

Three of four layers of the language model hold a state of fixed size in place of keys and values.

Source: Yang et al. 2024, "Gated Delta Networks", arXiv:2412.06464; transformers 5.23, `qwen3_5`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from vlmrl.models.attention import active_mask
from vlmrl.models.base import LANGUAGE_LINEAR
from vlmrl.parts.families.qwen3_vl import Qwen3Vl
from vlmrl.parts.families.qwen_like import MediaFeatures
from vlmrl.parts.families.small.qwen_models import SmallQwenModel

DELTA_NET_LINEAR = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")
"""Linear layers of a gated delta-net, for `Family.lora_targets`."""


@dataclass(frozen=True)
class Qwen35(Qwen3Vl):
    """The family of checkpoints of model type `qwen3_5`."""

    model_types: ClassVar[tuple[str, ...]] = ("qwen3_5",)
    lora_targets: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **Qwen3Vl.lora_targets,
        "language": (*LANGUAGE_LINEAR, *DELTA_NET_LINEAR),
    }
    towers: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **Qwen3Vl.towers,
        "projector": ("model.visual.merger.",),
    }
    small: ClassVar[SmallQwenModel] = replace(
        Qwen3Vl.small,
        model="Qwen3_5ForConditionalGeneration",
        config="Qwen3_5Config",
        vision={
            name: value
            for name, value in Qwen3Vl.small.vision.items()
            if name != "deepstack_visual_indexes"
        },
        text={
            "full_attention_interval": 2,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
        },
        rotated_share=0.25,
    )

    def decode(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor,
        features: MediaFeatures | None,
        cache: Any = None,
    ) -> torch.Tensor:
        """Do as `MropeFamily.decode`; the mask of `masked_by` goes to the delta-nets as well."""
        mask: Any = mask_of_layers(attention_mask)
        return super().decode(model, input_ids, mask, position_ids, features, cache)


def mask_of_layers(attention_mask: torch.Tensor | None) -> Any:
    """Return the mask for all kinds of layers: that of `masked_by`, or this one where there is none."""
    own = active_mask()
    return attention_mask if own is None else {"full_attention": own, "linear_attention": own}
