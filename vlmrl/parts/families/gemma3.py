"""Gemma 3: 256 tokens per image with bidirectional attention; sliding windows in most layers.

Source: Gemma Team 2025, "Gemma 3 Technical Report", arXiv:2503.19786. It publishes no format for
boxes; we ask for thousandths, the space of Gemini, a model of the same authors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import transformers

from vlmrl.config import BuildConfig
from vlmrl.models.base import ENCODER_LINEAR, LANGUAGE_LINEAR
from vlmrl.parts.families.small import builder
from vlmrl.parts.families.small.builder import Format
from vlmrl.parts.families.small.image_models import SmallImageModel
from vlmrl.parts.families.tiled_like import SIGLIP_VISION, SiglipFamily
from vlmrl.schema import Space

IMAGE, SOFT, END = "<start_of_image>", "<image_soft_token>", "<end_of_image>"
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<start_of_turn>"
    "{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] | trim }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<start_of_image>"
    "{% else %}{{ part['text'] | trim }}{% endif %}{% endfor %}{% endif %}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


@dataclass(frozen=True)
class Gemma3(SiglipFamily):
    """The family of checkpoints of model type `gemma3`. `pixel_values` is [images, 3, side, side].

    Pan and scan is off, as in the HF processor: every image becomes one square.
    """

    model_types: ClassVar[tuple[str, ...]] = ("gemma3",)
    space: ClassVar[Space] = "norm1000"
    two_way_media: ClassVar[bool] = True
    language_model: ClassVar[str] = "model"
    placeholder: ClassVar[str] = IMAGE
    turn_ends: ClassVar[tuple[str, ...]] = ("<end_of_turn>", "<eos>")
    media_tokens: ClassVar[tuple[str, ...]] = (IMAGE, SOFT, END)
    lora_targets: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "vision": ENCODER_LINEAR,
        "projector": (),  # a plain matrix, not a linear layer
        "language": LANGUAGE_LINEAR,
    }
    small: ClassVar[SmallImageModel] = SmallImageModel(
        model="Gemma3ForConditionalGeneration",
        config="Gemma3Config",
        text="gemma3_text",
        vision="siglip_vision_model",
        format=Format(
            special=("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>", *media_tokens),
            plain=("\n", "\n\n", "\n\n\n", "\n\n\n\n"),  # vLLM requires them
            roles=("user", "model"),
            end="<end_of_turn>",
            pad="<pad>",
            start="<bos>",
            named={"boi_token": IMAGE, "image_token": SOFT, "eoi_token": END},
        ),
        text_fields={
            "sliding_window": 32,
            "sliding_window_pattern": 2,
            "rope_parameters": {
                "full_attention": {**builder.ROPE},
                "sliding_attention": {**builder.ROPE},
            },
        },
        vision_fields=SIGLIP_VISION,
        token_ids={"image_token_index": SOFT, "boi_token_index": IMAGE, "eoi_token_index": END},
        shrink=2,
        tile_tokens="mm_tokens_per_image",
    )

    def build(self, build: BuildConfig, corpus: Sequence[str], seed: int) -> tuple[Any, Any]:
        model, processor = super().build(build, corpus, seed)
        # transformers initialises this matrix with zeros: no gradient would reach the tower.
        generator = torch.Generator().manual_seed(seed)
        matrix = model.model.multi_modal_projector.mm_input_projection_weight
        torch.nn.init.normal_(matrix, std=0.05, generator=generator)
        return model, processor

    def small_processor(self, config: Any, tokenizer: Any) -> Any:
        side = config.vision_config.image_size
        return transformers.Gemma3Processor(
            image_processor=transformers.Gemma3ImageProcessor(size={"height": side, "width": side}),
            tokenizer=tokenizer,
            chat_template=CHAT_TEMPLATE,
            image_seq_length=config.mm_tokens_per_image,
        )

    def image_tokens(self, processor: Any, width: int, height: int) -> int:
        return processor.image_seq_length
