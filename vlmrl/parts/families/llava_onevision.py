"""LLaVA-OneVision: an image as one tile and as a grid of tiles, boxes in the unit square.

Sources: Li et al. 2024, "LLaVA-OneVision", arXiv:2408.03326; boxes are numbers from 0 to 1,
as in the data of LLaVA-1.5 (arXiv:2310.03744). In some of that data they refer to the image padded to
a square; here they always refer to the image itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import transformers

from vlmrl.config import BuildConfig
from vlmrl.models.chat import CHATML_ENDS
from vlmrl.parts.families.small.builder import Format
from vlmrl.parts.families.small.image_models import SmallImageModel
from vlmrl.parts.families.tiled_like import SIGLIP_VISION, SiglipFamily
from vlmrl.schema import Space
from vlmrl.schema.media import Decoded

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
    `image_sizes` is int64 [images, 2], height and width. Each of several images is one tile, padded to a
    square, as in the authors' code and in the HF processor for a nested list; or, by
    `model.several_images: grid`, cut into a grid, as in vLLM and in the HF processor for a flat list.
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
    unread: ClassVar[tuple[str, ...]] = ("model.vision_tower.post_layernorm.",)
    images_in_tiles: ClassVar[bool] = True
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

    def recipe(self, build: BuildConfig) -> SmallImageModel:
        side = build.vision.get("image_size", SIDE)
        if side == SIDE or self.small.fields.get("image_grid_pinpoints") is not GRIDS:
            return self.small
        grids = [[rows * side // SIDE, columns * side // SIDE] for rows, columns in GRIDS]
        return replace(self.small, fields={**self.small.fields, "image_grid_pinpoints": grids})

    def small_processor(self, config: Any, tokenizer: Any) -> Any:
        vision = config.vision_config
        size = {"height": vision.image_size, "width": vision.image_size}
        images = transformers.LlavaOnevisionImageProcessor(
            size=size,
            image_grid_pinpoints=config.image_grid_pinpoints,
            image_mean=[0.5] * 3,
            image_std=[0.5] * 3,
        )
        vars(images)["several_images"] = "grid"  # a small model is one for every engine
        return transformers.LlavaOnevisionProcessor(
            image_processor=images,
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

    def images_tokens(self, processor: Any, sizes: Sequence[tuple[int, int]]) -> int:
        """Count the placeholders of all images: of one tile and a line break each, or of a grid each."""
        if len(sizes) > 1 and _in_tiles(processor):
            return len(sizes) * (processor.num_image_tokens + 1)
        return super().images_tokens(processor, sizes)

    def unserved_prompt(self, processor: object, images: int) -> str:
        if images < 2 or not _in_tiles(processor):
            return ""
        return "vLLM cuts each of several images into a grid: set model.several_images=grid"

    def _shown(self, processor: Any, media: Sequence[Decoded]) -> dict[str, Any]:
        # The HF processor makes one tile of each image of a list in a list.
        listed = len(media) > 1 and _in_tiles(processor)
        return {"images": [list(media)]} if listed else super()._shown(processor, media)

    def image_features(self, model: Any, tensors: Sequence[Mapping[str, torch.Tensor]]) -> Any:
        """Compute the features [tokens of all images, H]."""
        tiles = max(t["pixel_values"].shape[1] for t in tensors)
        pixels = torch.cat([_pad_tiles(t["pixel_values"], tiles) for t in tensors])
        sizes = torch.cat([t["image_sizes"] for t in tensors])
        gridded = pixels[:, 1:].flatten(1).any(1)  # a grid has a second tile, and no tile of zeros
        features: dict[int, torch.Tensor] = {}
        for in_grid in (True, False):
            chosen = (gridded == in_grid).nonzero()[:, 0]
            # transformers takes images of a prompt of several as tiles, so a lone tile goes twice.
            taken = chosen if in_grid or len(chosen) > 1 else chosen.repeat(2)
            if len(chosen):
                out = model.model.get_image_features(
                    pixel_values=pixels[taken].to(model.device, model.model.vision_tower.dtype),
                    image_sizes=sizes[taken],
                    batch_num_images=None if in_grid else [len(taken)],
                    return_dict=True,
                )
                features |= dict(zip(chosen.tolist(), out.pooler_output, strict=False))
        return torch.cat([features[index] for index in range(len(pixels))])


def _in_tiles(processor: Any) -> bool:
    """Return whether each of several images is one tile."""
    return getattr(processor.image_processor, "several_images", "tile") == "tile"


def _pad_tiles(pixels: torch.Tensor, tiles: int) -> torch.Tensor:
    """Pad the images with zeros to this number of tiles."""
    missing = tiles - pixels.shape[1]
    return torch.cat([pixels, pixels.new_zeros(len(pixels), missing, *pixels.shape[2:])], 1)
