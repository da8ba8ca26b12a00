"""LLaVA-OneVision: an image as one tile and as a grid of tiles, boxes in the unit square.

Sources: Li et al. 2024, "LLaVA-OneVision", arXiv:2408.03326; boxes are numbers from 0 to 1,
as in the data of LLaVA-1.5 (arXiv:2310.03744). In some of that data they refer to the image padded to
a square; here they always refer to the image itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import transformers

from vlmrl.models.chat import CHATML_ENDS
from vlmrl.parts.families.small.builder import Format
from vlmrl.parts.families.small.image_models import SmallImageModel
from vlmrl.parts.families.tiled_like import SIGLIP_VISION, SiglipFamily
from vlmrl.schema import Space

IMAGE = "<image>"
SIDE = 56
GRIDS = [[SIDE * rows, SIDE * columns] for rows in (1, 2) for columns in (1, 2)]
"""Height and width of the grids into which a small model may cut an image."""
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }} "
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] if part['type'] != 'text' %}<{{ part['type'] }}>\n"
    "{% endfor %}{% for part in message['content'] if part['type'] == 'text' %}"
    "{{ part['text'] }}{% endfor %}{% endif %}<|im_end|>"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class LlavaOnevision(SiglipFamily):
    """The family of checkpoints of model type `llava_onevision`.

    `pixel_values` is [images, tiles, 3, side, side], with zeros after an image's last tile;
    `image_sizes` is int64 [images, 2], height and width. Each of several images is cut into a grid, as
    in vLLM and in the HF processor for a flat list; the authors' code makes each a single tile.
    """

    model_types: ClassVar[tuple[str, ...]] = ("llava_onevision",)
    space: ClassVar[Space] = "norm1"
    placeholder: ClassVar[str] = IMAGE
    turn_ends: ClassVar[tuple[str, ...]] = CHATML_ENDS
    media_tokens: ClassVar[tuple[str, ...]] = (IMAGE, "<video>")
    towers: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **SiglipFamily.towers,
        "projector": ("model.multi_modal_projector.", "model.image_newline"),
    }
    tensor_names: ClassVar[tuple[str, ...]] = ("pixel_values", "image_sizes")
    small: ClassVar[SmallImageModel] = SmallImageModel(
        model="LlavaOnevisionForConditionalGeneration",
        config="LlavaOnevisionConfig",
        text="qwen2",
        vision="siglip_vision_model",
        format=Format(
            special=("<|endoftext|>", "<|im_start|>", "<|im_end|>", *media_tokens),
            roles=("system ", "user ", "assistant\n"),
        ),
        vision_fields={**SIGLIP_VISION, "image_size": SIDE},
        token_ids={"image_token_index": IMAGE, "video_token_index": "<video>"},
        fields={"image_grid_pinpoints": GRIDS},
    )

    def small_processor(self, config: Any, tokenizer: Any) -> Any:
        vision = config.vision_config
        size = {"height": vision.image_size, "width": vision.image_size}
        return transformers.LlavaOnevisionProcessor(
            image_processor=transformers.LlavaOnevisionImageProcessor(
                size=size,
                image_grid_pinpoints=config.image_grid_pinpoints,
                image_mean=[0.5] * 3,
                image_std=[0.5] * 3,
            ),
            tokenizer=tokenizer,
            video_processor=transformers.LlavaOnevisionVideoProcessor(size=size),
            num_image_tokens=(vision.image_size // vision.patch_size) ** 2,
            vision_feature_select_strategy=config.vision_feature_select_strategy,
            chat_template=CHAT_TEMPLATE,
        )

    def _join_tensors(self, name: str, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        if name == "pixel_values":
            tiles = max(before.shape[1], after.shape[1])
            before, after = _pad_tiles(before, tiles), _pad_tiles(after, tiles)
        return torch.cat([before, after])

    def image_tokens(self, processor: Any, width: int, height: int) -> int:
        """Count the tokens of one tile, of the grid without padding, and of a line break per row."""
        sizes = processor._get_num_multimodal_tokens(image_sizes=[(height, width)])
        return sizes.num_image_tokens[0]

    def image_features(self, model: Any, tensors: Sequence[Mapping[str, torch.Tensor]]) -> Any:
        """Compute the features [tokens of all images, H]."""
        tiles = max(t["pixel_values"].shape[1] for t in tensors)
        pixels = torch.cat([_pad_tiles(t["pixel_values"], tiles) for t in tensors])
        out = model.model.get_image_features(
            pixel_values=pixels.to(model.device, model.model.vision_tower.dtype),
            image_sizes=torch.cat([t["image_sizes"] for t in tensors]),
            return_dict=True,
        )
        return torch.cat(out.pooler_output)


def _pad_tiles(pixels: torch.Tensor, tiles: int) -> torch.Tensor:
    """Pad the images with zeros to this number of tiles."""
    missing = tiles - pixels.shape[1]
    return torch.cat([pixels, pixels.new_zeros(len(pixels), missing, *pixels.shape[2:])], 1)
