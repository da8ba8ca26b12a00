"""Qwen2.5-VL: windowed vision tower, coordinates in pixels of the resized image.

Source: Bai et al. 2025, "Qwen2.5-VL Technical Report", arXiv:2502.13923.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.models.base import LANGUAGE_LINEAR
from vlmrl.parts.families.qwen_like import MropeFamily, seconds_per_grid
from vlmrl.parts.families.small.qwen_models import SmallQwenModel
from vlmrl.schema import Space
from vlmrl.schema.media import Video


@dataclass(frozen=True)
class Qwen25Vl(MropeFamily):
    """The family of checkpoints of model type `qwen2_5_vl`."""

    model_types: ClassVar[tuple[str, ...]] = ("qwen2_5_vl",)
    space: ClassVar[Space] = "resized"
    lora_targets: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "vision": ("qkv", "proj", "gate_proj", "up_proj", "down_proj"),
        "projector": ("0", "2"),
        "language": LANGUAGE_LINEAR,
    }
    small: ClassVar[SmallQwenModel] = SmallQwenModel(
        model="Qwen2_5_VLForConditionalGeneration",
        config="Qwen2_5_VLConfig",
        processor="Qwen2_5_VLProcessor",
        video_processor="Qwen2VLVideoProcessor",
        vision={
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 192,
            "num_heads": 4,
            "patch_size": 14,
            "fullatt_block_indexes": [0, 1],  # a small image is a single window anyway
            "initializer_range": 0.05,
        },
    )

    def _time_step(self, processor: Any, video: Video) -> float:
        return processor.tokens_per_second * seconds_per_grid(processor, video)
