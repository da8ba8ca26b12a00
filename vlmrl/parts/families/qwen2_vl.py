"""Qwen2-VL: full attention in the vision tower, coordinates in thousandths of the image.

Source: Wang et al. 2024, "Qwen2-VL", arXiv:2409.12191 (boxes are normalised to [0, 1000)).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.models.base import LANGUAGE_LINEAR
from vlmrl.parts.families.qwen_like import MropeFamily
from vlmrl.parts.families.small.qwen_models import SmallQwenModel
from vlmrl.schema import Space


@dataclass(frozen=True)
class Qwen2Vl(MropeFamily):
    """The family of checkpoints of model type `qwen2_vl`."""

    model_types: ClassVar[tuple[str, ...]] = ("qwen2_vl",)
    space: ClassVar[Space] = "norm1000"
    lora_targets: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "vision": ("qkv", "proj", "fc1", "fc2"),
        "projector": ("0", "2"),
        "language": LANGUAGE_LINEAR,
    }
    small: ClassVar[SmallQwenModel] = SmallQwenModel(
        model="Qwen2VLForConditionalGeneration",
        config="Qwen2VLConfig",
        processor="Qwen2VLProcessor",
        video_processor="Qwen2VLVideoProcessor",
        vision={
            "depth": 2,
            "embed_dim": 64,
            "mlp_ratio": 3,
            "num_heads": 4,
            "patch_size": 14,
            "initializer_range": 0.05,
        },
        vision_width="embed_dim",
        vision_out="hidden_size",
    )
