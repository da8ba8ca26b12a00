"""GLM-4.1V: a tower with its own positions, M-RoPE on half of each head, norms around each layer.

Source: Hong et al. 2025, "GLM-4.5V and GLM-4.1V-Thinking", arXiv:2507.01006.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from vlmrl.models.base import ATTENTION_LINEAR
from vlmrl.parts.families.qwen_like import MropeFamily, PromptLayout, fit_size
from vlmrl.parts.families.small.builder import Format
from vlmrl.parts.families.small.qwen_models import SmallQwenModel
from vlmrl.schema import Space
from vlmrl.schema.media import Video

IMAGE, VIDEO = "<|image|>", "<|video|>"
MARKS = ("<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>")
ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
START = ("[gMASK]", "<sop>")
PAD = "<|endoftext|>"
CHAT_TEMPLATE = (
    f"{''.join(START)}{{% for message in messages %}}<|{{{{ message['role'] }}}}|>\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    f"{MARKS[0]}{IMAGE}{MARKS[1]}{{% elif part['type'] == 'video' %}}"
    f"{MARKS[2]}{VIDEO}{MARKS[3]}{{% else %}}{{{{ part['text'] }}}}{{% endif %}}{{% endfor %}}{{% endif %}}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
"""Of small models: as published ones in what follows a turn, which is the next role."""


@dataclass(frozen=True)
class Glm4v(MropeFamily):
    """The family of checkpoints of model type `glm4v`.

    A turn has no end of its own: the policy ends it with the role that comes next. Every two frames of a
    video are an image in the text, with their second behind it.
    """

    model_types: ClassVar[tuple[str, ...]] = ("glm4v",)
    space: ClassVar[Space] = "norm1000"
    media_tokens: ClassVar[tuple[str, ...]] = (IMAGE, VIDEO, *MARKS)
    turn_ends: ClassVar[tuple[str, ...]] = ("<|user|>", "<|observation|>", PAD)
    towers: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "vision": (
            "model.visual.patch_embed.",
            "model.visual.embeddings.",
            "model.visual.blocks.",
            "model.visual.post_conv_layernorm.",
            "model.visual.post_layernorm.",
        ),
        "projector": ("model.visual.downsample.", "model.visual.merger."),
        "language": ("model.language_model.", "lm_head."),
    }
    lora_targets: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "vision": ("qkv", "proj", "gate_proj", "up_proj", "down_proj"),
        "projector": ("proj", "gate_proj", "up_proj", "down_proj"),
        "language": (*ATTENTION_LINEAR, "gate_up_proj", "down_proj"),
    }
    served_videos: ClassVar[int | None] = 1
    small: ClassVar[SmallQwenModel] = SmallQwenModel(
        model="Glm4vForConditionalGeneration",
        config="Glm4vConfig",
        processor="Glm4vProcessor",
        image_processor="Glm4vImageProcessor",
        video_processor="Glm4vVideoProcessor",
        vision={
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_heads": 4,
            "image_size": 112,
            "initializer_range": 0.05,
        },
        text={"attention_bias": True},  # only vLLM asks, and drops biases without it
        rotated_share=0.5,
        text_ties=True,
        format=Format(
            special=(PAD, *START, *ROLES, IMAGE, VIDEO, *MARKS),
            roles=("\n",),
            end="<|user|>",
            pad=PAD,
        ),
        chat_template=CHAT_TEMPLATE,
        token_ids={
            "image_token_id": IMAGE,
            "video_token_id": VIDEO,
            "image_start_token_id": MARKS[0],
            "image_end_token_id": MARKS[1],
            "video_start_token_id": MARKS[2],
            "video_end_token_id": MARKS[3],
        },
    )

    def _fit_image(self, processor: Any, width: int, height: int) -> tuple[int, int]:
        from transformers.models.glm4v.image_processing_glm4v import smart_resize

        images = processor.image_processor
        frames = images.temporal_patch_size
        return fit_size(
            smart_resize, images, "an image", frames, height, width, temporal_factor=frames
        )

    def _fit_video(self, processor: Any, video: Video) -> tuple[int, int]:
        from transformers.models.glm4v.video_processing_glm4v import smart_resize

        sizes = (len(video.paired().frames), *video.size[::-1])
        return fit_size(smart_resize, processor.video_processor, "a video", *sizes)

    def _lay_video(
        self,
        processor: Any,
        layout: PromptLayout,
        video: Video,
        grid: tuple[int, int, int],
        audio_tokens: int,
    ) -> None:
        """Lay out every step in time as an image, then the whole second of its first frame as text."""
        times, rows, columns = grid
        meta, tokenizer = video.paired().metadata, processor.tokenizer
        begin, end = tokenizer.convert_tokens_to_ids(list(MARKS[:2]))
        first = meta["frames_indices"][:: processor.video_processor.temporal_patch_size]
        assert len(first) == times
        for index in first:
            second = tokenizer(str(int(index / meta["fps"])), add_special_tokens=False)["input_ids"]
            layout.text([begin])
            layout.grid(processor.image_token_id, 1, rows, columns)
            layout.text([end, *second])

    def _seen_grids(self, grids: torch.Tensor) -> torch.Tensor:
        """Return a grid for each step in time: what the tower sees of a video is single images."""
        steps = grids.repeat_interleave(grids[:, 0], 0)
        steps[:, 0] = 1
        return steps
