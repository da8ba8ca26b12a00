"""SmolVLM and SmolVLM2: smaller relatives of Idefics3 with another language model.

Source: Marafioti et al. 2025, "SmolVLM", arXiv:2504.05299.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import transformers

from vlmrl.models.parts import idefics
from vlmrl.models.small.byte_tokenizer import Format
from vlmrl.models.small.image_models import SmallImageModel
from vlmrl.system.extras import import_extra


@dataclass(frozen=True)
class Smolvlm(idefics.IdeficsFamily):
    """The family of checkpoints of model type `smolvlm`."""

    model_types: ClassVar[tuple[str, ...]] = ("smolvlm",)
    turn_ends: ClassVar[tuple[str, ...]] = (idefics.TURN_END, "<|im_end|>")
    media_tokens: ClassVar[tuple[str, ...]] = (*idefics.IdeficsFamily.media_tokens, "<video>")
    small: ClassVar[SmallImageModel] = SmallImageModel(
        model="SmolVLMForConditionalGeneration",
        config="SmolVLMConfig",
        text="llama",
        vision="smolvlm_vision",
        format=Format(
            special=("<|im_start|>", "<|im_end|>", idefics.TURN_END, *idefics.SMALL_TOKENS),
            roles=("User:", "Assistant:"),
            end=idefics.TURN_END,
            pad="<|im_end|>",
            start="<|im_start|>",
        ),
        vision_fields=idefics.VISION,
        token_ids={"image_token_id": idefics.IMAGE, "pad_token_id": "<|im_end|>"},
        shrink=2,
    )

    def small_processor(self, config: Any, tokenizer: Any) -> Any:
        """Build a processor with the sizes of `small_sizes`."""
        import_extra("num2words", "smolvlm")  # the processor writes times of frames in words
        sizes = idefics.small_sizes(config)
        return transformers.SmolVLMProcessor(
            image_processor=transformers.SmolVLMImageProcessor(**sizes),
            tokenizer=tokenizer,
            video_processor=transformers.SmolVLMVideoProcessor(**sizes),
            image_seq_len=idefics.tile_tokens(config),
            chat_template=idefics.CHAT_TEMPLATE,
        )
