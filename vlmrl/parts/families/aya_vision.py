"""Aya Vision: a SigLIP tower and a Cohere2 language model; tiles of 364 pixels and a thumbnail.

Source: Dash et al. 2025, "Aya Vision: Advancing the Frontier of Multilingual Multimodality",
arXiv:2505.08751. It publishes no format for boxes; we ask for thousandths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import transformers

from vlmrl.parts.families.small.builder import Format
from vlmrl.parts.families.small.image_models import SmallImageModel
from vlmrl.parts.families.tiled_like import SIGLIP_VISION, SiglipFamily
from vlmrl.schema import Space

IMAGE, PATCH = "<image>", "<|IMG_PATCH|>"
MARKS = ("<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_LINE_BREAK|>", "TILE_GLOBAL")
TILES = tuple(f"TILE_{number}" for number in range(1, 13))
MAX_TILES = 4
"""The largest number of tiles, without the thumbnail, in a small model."""
START, TURN, END = "<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"
USER, CHATBOT = "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>"
CHAT_TEMPLATE = (
    f"{{{{ bos_token }}}}{{% for message in messages %}}{TURN}"
    f"{{{{ '{CHATBOT}' if message['role'] == 'assistant' else '{USER}' }}}}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<image>"
    f"{{% else %}}{{{{ part['text'] }}}}{{% endif %}}{{% endfor %}}{{% endif %}}{END}"
    f"{{% endfor %}}{{% if add_generation_prompt %}}{TURN}{CHATBOT}{{% endif %}}"
)


@dataclass(frozen=True)
class AyaVision(SiglipFamily):
    """The family of checkpoints of model type `aya_vision`. `pixel_values` is [tiles, 3, side, side]."""

    model_types: ClassVar[tuple[str, ...]] = ("aya_vision",)
    space: ClassVar[Space] = "norm1000"
    placeholder: ClassVar[str] = IMAGE
    turn_ends: ClassVar[tuple[str, ...]] = (END, "<EOS_TOKEN>")
    media_tokens: ClassVar[tuple[str, ...]] = (IMAGE, PATCH, *MARKS, *TILES)
    unread: ClassVar[tuple[str, ...]] = ("model.vision_tower.post_layernorm.",)
    unserved: ClassVar[str] = "vLLM has no Aya Vision since 0.24"
    small: ClassVar[SmallImageModel] = SmallImageModel(
        model="AyaVisionForConditionalGeneration",
        config="AyaVisionConfig",
        text="cohere2",
        vision="siglip_vision_model",
        format=Format(
            special=(
                *("<PAD>", START, "<EOS_TOKEN>", TURN, END, USER, CHATBOT),
                *(IMAGE, PATCH, *MARKS, *TILES[:MAX_TILES]),
            ),
            roles=(),
            end=END,
            pad="<PAD>",
            start=START,
        ),
        text_fields={"sliding_window": 32, "sliding_window_pattern": 2},
        vision_fields=SIGLIP_VISION,
        token_ids={"image_token_index": PATCH},
        shrink=2,
    )

    def small_processor(self, config: Any, tokenizer: Any) -> Any:
        vision = config.vision_config
        side = vision.image_size
        return transformers.AyaVisionProcessor(
            image_processor=transformers.GotOcr2ImageProcessor(
                size={"height": side, "width": side}, crop_to_patches=True, max_patches=MAX_TILES
            ),
            tokenizer=tokenizer,
            patch_size=vision.patch_size,
            img_size=side,
            downsample_factor=config.downsample_factor,
            chat_template=CHAT_TEMPLATE,
        )

    def image_tokens(self, processor: Any, width: int, height: int) -> int:
        images = processor.image_processor
        # The HF processor cuts images into tiles whatever the setting of its image processor is.
        tiles = images.get_number_of_image_patches(height, width, {"crop_to_patches": True})
        return tiles * (processor.img_size // processor.patch_size) ** 2
