"""SmolVLM and SmolVLM2: smaller relatives of Idefics3 with another language model.

Source: Marafioti et al. 2025, "SmolVLM", arXiv:2504.05299.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import transformers

from vlmrl.errors import import_extra
from vlmrl.parts.families import tiled_like
from vlmrl.parts.families.small.builder import Format
from vlmrl.parts.families.small.image_models import SmallImageModel


@dataclass(frozen=True)
class Smolvlm(tiled_like.IdeficsFamily):
    """The family of checkpoints of model type `smolvlm`."""

    model_types: ClassVar[tuple[str, ...]] = ("smolvlm",)
    turn_ends: ClassVar[tuple[str, ...]] = (tiled_like.TURN_END, "<|im_end|>")
    media_tokens: ClassVar[tuple[str, ...]] = (*tiled_like.IdeficsFamily.media_tokens, "<video>")
    small: ClassVar[SmallImageModel] = SmallImageModel(
        model="SmolVLMForConditionalGeneration",
        config="SmolVLMConfig",
        text="llama",
        vision="smolvlm_vision",
        format=Format(
            special=("<|im_start|>", "<|im_end|>", tiled_like.TURN_END, *tiled_like.SMALL_TOKENS),
            roles=("User:", "Assistant:"),
            end=tiled_like.TURN_END,
            pad="<|im_end|>",
            start="<|im_start|>",
        ),
        vision_fields=tiled_like.VISION,
        token_ids={"image_token_id": tiled_like.IMAGE, "pad_token_id": "<|im_end|>"},
        shrink=2,
    )

    def small_processor(self, config: object, tokenizer: object) -> Any:
        import_extra("num2words", "smolvlm")  # the processor writes times of frames in words
        sizes = tiled_like.small_sizes(config)
        return transformers.SmolVLMProcessor(
            image_processor=transformers.SmolVLMImageProcessor(**sizes),
            tokenizer=tokenizer,
            video_processor=transformers.SmolVLMVideoProcessor(**sizes),
            image_seq_len=tiled_like.tile_tokens(config),
            chat_template=tiled_like.CHAT_TEMPLATE,
        )
