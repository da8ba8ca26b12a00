"""SmolVLM and SmolVLM2: small Idefics3 models with a language model of their own.

Source: Marafioti et al. 2025, "SmolVLM", arXiv:2504.05299.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import transformers

from vlmrl.models import _idefics
from vlmrl.models._small_picture import Small
from vlmrl.models._tokenizer import Format


@dataclass(frozen=True)
class Smolvlm(_idefics.IdeficsFamily):
    """Checkpoints of model type `smolvlm`."""

    model_types: ClassVar[tuple[str, ...]] = ("smolvlm",)
    turn_ends: ClassVar[tuple[str, ...]] = (_idefics.TURN_END, "<|im_end|>")
    media_tokens: ClassVar[tuple[str, ...]] = (*_idefics.IdeficsFamily.media_tokens, "<video>")
    small: ClassVar[Small] = Small(
        model="SmolVLMForConditionalGeneration",
        config="SmolVLMConfig",
        text="llama",
        vision="smolvlm_vision",
        format=Format(
            special=("<|im_start|>", "<|im_end|>", _idefics.TURN_END, *_idefics.SMALL_TOKENS),
            roles=("User:", "Assistant:"),
            end=_idefics.TURN_END,
            pad="<|im_end|>",
            start="<|im_start|>",
        ),
        vision_fields=_idefics.VISION,
        token_ids={"image_token_id": _idefics.IMAGE, "pad_token_id": "<|im_end|>"},
        shrink=2,
    )

    def small_processor(self, config: Any, tokenizer: Any) -> Any:
        """See `small_sizes`."""
        sizes = _idefics.small_sizes(config)
        return transformers.SmolVLMProcessor(
            image_processor=transformers.SmolVLMImageProcessor(**sizes),
            tokenizer=tokenizer,
            video_processor=transformers.SmolVLMVideoProcessor(**sizes),
            image_seq_len=_idefics.tile_tokens(config),
            chat_template=_idefics.CHAT_TEMPLATE,
        )
