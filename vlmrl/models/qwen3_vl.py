"""Qwen3-VL: patches of 16, features of several vision layers (DeepStack), norm-1000 boxes.

Source: Bai et al. 2025, "Qwen3-VL Technical Report", arXiv:2511.21631.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.models._build import Small
from vlmrl.models._qwen import LANGUAGE_LINEAR, MropeFamily
from vlmrl.schema import Space


@dataclass(frozen=True)
class Qwen3Vl(MropeFamily):
    """Checkpoints of model type `qwen3_vl`."""

    model_types: ClassVar[tuple[str, ...]] = ("qwen3_vl",)
    space: ClassVar[Space] = "norm1000"
    lora_targets: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "vision": ("qkv", "proj", "linear_fc1", "linear_fc2"),
        "projector": ("linear_fc1", "linear_fc2"),
        "language": LANGUAGE_LINEAR,
    }
    small: ClassVar[Small] = Small(
        model="Qwen3VLForConditionalGeneration",
        config="Qwen3VLConfig",
        processor="Qwen3VLProcessor",
        video_processor="Qwen3VLVideoProcessor",
        vision={
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 192,
            "num_heads": 4,
            "patch_size": 16,
            "num_position_embeddings": 256,
            "deepstack_visual_indexes": [0],
            "initializer_range": 0.05,
        },
        side_share=20 / 64,
        interleaved=True,
    )
