"""Qwen3-VL: patches of 16, features of several vision layers (DeepStack), norm1000 boxes.

Source: Bai et al. 2025, "Qwen3-VL Technical Report", arXiv:2511.21631.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.models.base import LANGUAGE_LINEAR
from vlmrl.parts.families.qwen_like import MropeFamily, PromptLayout, fit_size
from vlmrl.parts.families.small.qwen_models import SmallQwenModel
from vlmrl.schema import Space
from vlmrl.schema.media import Video


@dataclass(frozen=True)
class Qwen3Vl(MropeFamily):
    """The family of checkpoints of model type `qwen3_vl`."""

    model_types: ClassVar[tuple[str, ...]] = ("qwen3_vl",)
    space: ClassVar[Space] = "norm1000"
    lora_targets: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "vision": ("qkv", "proj", "linear_fc1", "linear_fc2"),
        "projector": ("linear_fc1", "linear_fc2"),
        "language": LANGUAGE_LINEAR,
    }
    small: ClassVar[SmallQwenModel] = SmallQwenModel(
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

    def _lay_video(
        self,
        processor: Any,
        layout: PromptLayout,
        video: Video,
        grid: tuple[int, int, int],
        audio_tokens: int,
    ) -> None:
        """Lay out every step in time on its own, after its seconds as text.

        The start and end marks of the chat template remain around all of them, as in transformers
        and vLLM.
        """
        times, rows, columns = grid
        meta, size = video.paired().metadata, processor.video_processor.temporal_patch_size
        seconds = [index / meta["fps"] for index in meta["frames_indices"]]
        assert len(seconds) == times * size
        for i in range(0, len(seconds), size):
            moment = (seconds[i] + seconds[i + size - 1]) / 2
            layout.text(processor.tokenizer(f"<{moment:.1f} seconds>")["input_ids"])
            layout.text([processor.vision_start_token_id])
            layout.grid(processor.video_token_id, 1, rows, columns)
            layout.text([processor.vision_end_token_id])

    def _fit_video(self, processor: Any, video: Video) -> tuple[int, int]:
        from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize

        sizes = (len(video.paired().frames), *video.size[::-1])
        return fit_size(smart_resize, processor.video_processor, "a video", *sizes)
