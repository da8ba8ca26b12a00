"""Idefics3: a SigLIP tower and Llama 3.

Source: Laurençon et al. 2024, "Building and better understanding vision-language models",
arXiv:2408.12637.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import transformers

from vlmrl.models import _idefics
from vlmrl.models._small_picture import Small
from vlmrl.models._tokenizer import Format

START, END = "<|begin_of_text|>", "<|end_of_text|>"


@dataclass(frozen=True)
class Idefics3(_idefics.IdeficsFamily):
    """Checkpoints of model type `idefics3`."""

    model_types: ClassVar[tuple[str, ...]] = ("idefics3",)
    turn_ends: ClassVar[tuple[str, ...]] = (_idefics.TURN_END, "<|eot_id|>", END)
    small: ClassVar[Small] = Small(
        model="Idefics3ForConditionalGeneration",
        config="Idefics3Config",
        text="llama",
        vision="idefics3_vision",
        format=Format(
            special=(START, END, _idefics.TURN_END, *_idefics.SMALL_TOKENS),
            roles=("User:", "Assistant:"),
            end=_idefics.TURN_END,
            pad=END,
            start=START,
        ),
        vision_fields=_idefics.VISION,
        token_ids={"image_token_id": _idefics.IMAGE, "pad_token_id": END},
        shrink=2,
    )

    def small_processor(self, config: Any, tokenizer: Any) -> Any:
        """See `small_sizes`."""
        return transformers.Idefics3Processor(
            image_processor=transformers.Idefics3ImageProcessor(**_idefics.small_sizes(config)),
            tokenizer=tokenizer,
            image_seq_len=_idefics.tile_tokens(config),
            chat_template=_idefics.CHAT_TEMPLATE,
        )
