"""Idefics3: a SigLIP tower and Llama 3.

Source: Laurençon et al. 2024, "Building and better understanding vision-language models",
arXiv:2408.12637.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import transformers

from vlmrl.models.parts import idefics
from vlmrl.models.small.byte_tokenizer import Format
from vlmrl.models.small.image_models import SmallImageModel

START, END = "<|begin_of_text|>", "<|end_of_text|>"


@dataclass(frozen=True)
class Idefics3(idefics.IdeficsFamily):
    """The family of checkpoints of model type `idefics3`."""

    model_types: ClassVar[tuple[str, ...]] = ("idefics3",)
    turn_ends: ClassVar[tuple[str, ...]] = (idefics.TURN_END, "<|eot_id|>", END)
    small: ClassVar[SmallImageModel] = SmallImageModel(
        model="Idefics3ForConditionalGeneration",
        config="Idefics3Config",
        text="llama",
        vision="idefics3_vision",
        format=Format(
            special=(START, END, idefics.TURN_END, *idefics.SMALL_TOKENS),
            roles=("User:", "Assistant:"),
            end=idefics.TURN_END,
            pad=END,
            start=START,
        ),
        vision_fields=idefics.VISION,
        token_ids={"image_token_id": idefics.IMAGE, "pad_token_id": END},
        shrink=2,
    )

    def small_processor(self, config: Any, tokenizer: Any) -> Any:
        """Build a processor with the sizes of `small_sizes`."""
        return transformers.Idefics3Processor(
            image_processor=transformers.Idefics3ImageProcessor(**idefics.small_sizes(config)),
            tokenizer=tokenizer,
            image_seq_len=idefics.tile_tokens(config),
            chat_template=idefics.CHAT_TEMPLATE,
        )
