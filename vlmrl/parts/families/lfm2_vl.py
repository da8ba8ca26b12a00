"""LFM2-VL: images in their own shape, or tiles with a thumbnail; most language layers are short convolutions.

Source: Liquid AI 2025, "LFM2 Technical Report", arXiv:2511.23404. Nothing is published on boxes; we ask
for thousandths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import transformers

from vlmrl.config import BuildConfig
from vlmrl.errors import UserError
from vlmrl.models.base import ATTENTION_LINEAR, ENCODER_LINEAR, is_tied
from vlmrl.models.chat import CHATML_ENDS
from vlmrl.parts.families.small import builder
from vlmrl.parts.families.small.builder import Format
from vlmrl.parts.families.small.image_models import SmallImageModel
from vlmrl.parts.families.tiled_like import ImageFamily, SiglipFamily
from vlmrl.schema import Space

IMAGE = "<image>"
START = "<|startoftext|>"
MARKS = ("<|image_start|>", "<|image_end|>", "<|img_thumbnail|>")
PLACES = tuple(f"<|img_row_{row}_col_{column}|>" for row in range(1, 11) for column in range(1, 11))
MAX_TILES = 4
"""The largest number of tiles, without the thumbnail, in a small model."""
SMALL_PLACES = tuple(
    f"<|img_row_{row}_col_{column}|>"
    for row in range(1, MAX_TILES + 1)
    for column in range(1, MAX_TILES // row + 1)
)
EVERY = 2
"""Every layer of this number attends in a small model; the others are convolutions."""
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<image>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Lfm2Vl(ImageFamily):
    """The family of checkpoints of model type `lfm2_vl`.

    `pixel_values` is float32 [tiles, patches, 3 * side * side], padded; `pixel_attention_mask` int64 [tiles,
    patches] marks what is not padding, `spatial_shapes` int64 [tiles, 2] is height and width in patches.

    Its convolutions read the tokens that stand next to each other, so that completions behind one prompt
    in a row would read each other's: the forward is not shared.
    """

    model_types: ClassVar[tuple[str, ...]] = ("lfm2_vl",)
    space: ClassVar[Space] = "norm1000"
    placeholder: ClassVar[str] = IMAGE
    turn_ends: ClassVar[tuple[str, ...]] = CHATML_ENDS
    media_tokens: ClassVar[tuple[str, ...]] = (IMAGE, *MARKS, *PLACES)
    towers: ClassVar[Mapping[str, tuple[str, ...]]] = SiglipFamily.towers
    lora_targets: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "vision": (*ENCODER_LINEAR, "patch_embedding"),
        "projector": ("linear_1", "linear_2"),
        "language": (*ATTENTION_LINEAR[:3], "in_proj", "out_proj", "w1", "w2", "w3"),
    }
    decoder_layers: ClassVar[tuple[str, ...]] = (
        "model.language_model.layers",
        "model.vision_tower.encoder.layers",
    )
    tensor_names: ClassVar[tuple[str, ...]] = (
        "pixel_values",
        "pixel_attention_mask",
        "spatial_shapes",
    )
    small: ClassVar[SmallImageModel] = SmallImageModel(
        model="Lfm2VlForConditionalGeneration",
        config="Lfm2VlConfig",
        text="lfm2",
        vision="siglip2_vision_model",
        format=Format(
            special=("<|pad|>", START, "<|im_start|>", *CHATML_ENDS, IMAGE, *MARKS, *SMALL_PLACES),
            pad="<|pad|>",
            start=START,
            named={
                "image_token": IMAGE,
                "image_start_token": MARKS[0],
                "image_end_token": MARKS[1],
                "image_thumbnail_token": MARKS[2],
            },
        ),
        text_fields={"block_auto_adjust_ff_dim": False},
        vision_fields={"patch_size": 16, "num_patches": 64, "vision_use_head": False},
        token_ids={"image_token_id": IMAGE},
        fields={"projector_hidden_size": 96},
    )

    def recipe(self, build: BuildConfig) -> SmallImageModel:
        layers = int(build.text.get("num_hidden_layers", builder.TEXT["num_hidden_layers"]))
        attends = {"full_attn_idxs": [*range(EVERY - 1, layers, EVERY)]}
        return replace(self.small, text_fields={**attends, **self.small.text_fields})

    def small_processor(self, config: Any, tokenizer: Any) -> Any:
        return transformers.Lfm2VlProcessor(
            image_processor=transformers.Lfm2VlImageProcessor(
                encoder_patch_size=config.vision_config.patch_size,
                downsample_factor=config.downsample_factor,
                tile_size=64,
                max_tiles=MAX_TILES,
                min_image_tokens=4,
                max_image_tokens=64,
                max_pixels_tolerance=0.3,  # so that small images are cut into tiles
            ),
            tokenizer=tokenizer,
            chat_template=CHAT_TEMPLATE,
        )

    def image_tokens(self, processor: Any, width: int, height: int) -> int:
        images = processor.image_processor
        sizes = {
            "max_image_tokens": images.max_image_tokens,
            "encoder_patch_size": images.encoder_patch_size,
            "downsample_factor": images.downsample_factor,
        }
        wide, high = images.smart_resize(
            height, width, min_image_tokens=images.min_image_tokens, **sizes
        )
        tile, own = processor._get_image_num_tokens([high, wide])
        least, most = images.min_tiles, images.max_tiles
        splits = images.do_image_splitting and not least == most == 1
        if not splits or not images._is_image_too_large(
            height, width, max_pixels_tolerance=images.max_pixels_tolerance, **sizes
        ):
            return int(own)
        columns, rows, *_ = images._get_grid_layout(height, width, least, most, images.tile_size)
        if columns * rows == 1:
            return int(own)
        return int(columns * rows * tile + (own if images.use_thumbnail else 0))

    def served_config(self, model: Any) -> Any:
        """Return the config with two widths that vLLM reads and published configs have.

        Raises:
            UserError: the head is not tied, as that of published models is; vLLM ties all.
        """
        if not is_tied(model):
            raise UserError("vLLM: it has LFM2 with a tied head alone; use engine: hf")
        config = super().served_config(model)
        text = config.text_config
        text.conv_dim = text.block_dim = text.hidden_size
        return config

    def export_names(self, named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Name the vision tower's weights as vLLM does, with a level that transformers leaves out."""
        tower = "model.vision_tower."
        return {name.replace(tower, f"{tower}vision_model."): w for name, w in named.items()}

    def image_features(self, model: Any, tensors: Sequence[Mapping[str, torch.Tensor]]) -> Any:
        """Compute the features [tokens of all tiles, H]."""
        names = ("pixel_values", "pixel_attention_mask")
        pixels, seen = (torch.cat([t[name] for t in tensors]).to(model.device) for name in names)
        out = model.model.get_image_features(
            pixel_values=pixels.to(model.model.vision_tower.dtype),
            pixel_attention_mask=seen,
            spatial_shapes=torch.cat([t["spatial_shapes"] for t in tensors]),
            return_dict=True,
        )
        return torch.cat(out.pooler_output)
