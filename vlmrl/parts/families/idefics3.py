"""Idefics3: a SigLIP tower and Llama 3.

Source: Laurençon et al. 2024, "Building and better understanding vision-language models",
arXiv:2408.12637.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import transformers

from vlmrl.parts.families import tiled_like
from vlmrl.parts.families.small.builder import Format
from vlmrl.parts.families.small.image_models import SmallImageModel

START, END = "<|begin_of_text|>", "<|end_of_text|>"


@dataclass(frozen=True)
class Idefics3(tiled_like.IdeficsFamily):
    """The family of checkpoints of model type `idefics3`."""

    model_types: ClassVar[tuple[str, ...]] = ("idefics3",)
    turn_ends: ClassVar[tuple[str, ...]] = (tiled_like.TURN_END, "<|eot_id|>", END)
    small: ClassVar[SmallImageModel] = SmallImageModel(
        model="Idefics3ForConditionalGeneration",
        config="Idefics3Config",
        text="llama",
        vision="idefics3_vision",
        format=Format(
            special=(START, END, tiled_like.TURN_END, *tiled_like.SMALL_TOKENS),
            roles=("User:", "Assistant:"),
            end=tiled_like.TURN_END,
            pad=END,
            start=START,
        ),
        vision_fields=tiled_like.VISION,
        token_ids={"image_token_id": tiled_like.IMAGE, "pad_token_id": END},
        shrink=2,
    )

    def small_processor(self, config: object, tokenizer: object) -> Any:
        return transformers.Idefics3Processor(
            image_processor=transformers.Idefics3ImageProcessor(**tiled_like.small_sizes(config)),
            tokenizer=tokenizer,
            image_seq_len=tiled_like.tile_tokens(config),
            chat_template=tiled_like.CHAT_TEMPLATE,
        )
