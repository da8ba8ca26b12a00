"""The base of SmolVLM and Idefics3: a grid of tiles with row and column tokens, then the whole image.

Their reports publish no format for boxes; Smol2Operator, in which their authors train SmolVLM2 to
point, uses numbers from 0 to 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from vlmrl.models.base import ENCODER_LINEAR, LANGUAGE_LINEAR
from vlmrl.models.parts.tiled_image import ImageFamily
from vlmrl.schema import Space

IMAGE, AROUND, WHOLE = "<image>", "<fake_token_around_image>", "<global-img>"
GRID = 2
"""The largest number of rows and of columns in a small model's grid."""
PLACES = tuple(f"<row_{r + 1}_col_{c + 1}>" for r in range(6) for c in range(6))
SMALL_TOKENS = (IMAGE, AROUND, WHOLE, *(p for p in PLACES if int(p[5]) <= GRID >= int(p[-2])))
"""The media tokens of a small model's tokenizer."""
TURN_END = "<end_of_utterance>"
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] | capitalize }}:"
    "{% if message['content'] is string %} {{ message['content'] }}{% else %}"
    "{% if message['content'][0]['type'] != 'image' %} {% endif %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<image>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
VISION = {"image_size": 84, "initializer_range": 0.05}
"""Fields of a small model's tower."""


@dataclass(frozen=True)
class IdeficsFamily(ImageFamily):
    """The base of SmolVLM and Idefics3.

    `pixel_values` is float32 [1, tiles, 3, side, side], `pixel_attention_mask` int64
    [1, tiles, side, side].
    """

    space: ClassVar[Space] = "norm1"
    placeholder: ClassVar[str] = IMAGE
    media_tokens: ClassVar[tuple[str, ...]] = (IMAGE, AROUND, WHOLE, *PLACES)
    language_model: ClassVar[str] = "model.text_model"
    towers: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "vision": ("model.vision_model.",),
        "projector": ("model.connector.",),
        "language": ("model.text_model.", "lm_head."),
    }
    lora_targets: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "vision": ENCODER_LINEAR,
        "projector": ("proj",),
        "language": LANGUAGE_LINEAR,
    }
    decoder_layers: ClassVar[tuple[str, ...]] = (
        "model.text_model.layers",
        "model.vision_model.encoder.layers",
    )
    shared: ClassVar[bool] = True
    tensor_names: ClassVar[tuple[str, ...]] = ("pixel_values", "pixel_attention_mask")

    def _join_tensors(self, name: str, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        return torch.cat([before, after], 1)

    def image_tokens(self, processor: Any, width: int, height: int) -> int:
        """Count the tokens of all tiles."""
        images = processor.image_processor
        tiles = 1
        if images.do_image_splitting:
            side = images.max_image_size["longest_edge"]
            longest = images.size["longest_edge"] if images.do_resize else max(width, height)
            tiles = _count_tiles(width, height, longest, side)
        return tiles * processor.image_seq_len

    def image_features(
        self, model: Any, tensors: Sequence[Mapping[str, torch.Tensor]]
    ) -> torch.Tensor:
        """Compute the features [tokens of all images, H]."""
        pixels, seen = (torch.cat([t[key] for t in tensors], 1) for key in self.tensor_names)
        out = model.model.get_image_features(
            pixel_values=pixels.to(model.device),
            pixel_attention_mask=seen.to(model.device),
            return_dict=True,
        )
        # [tiles, tokens, H]; since transformers 5.20, a list of [tokens, H], one per prompt.
        return torch.cat(tuple(out.pooler_output))


def small_sizes(config: Any) -> dict[str, Any]:
    """Return options of a small image processor: tiles of the tower's size, at most `GRID` per side."""
    side = config.vision_config.image_size
    return {"size": {"longest_edge": GRID * side}, "max_image_size": {"longest_edge": side}}


def tile_tokens(config: Any) -> int:
    """Count the tokens of one tile."""
    vision = config.vision_config
    return (vision.image_size // vision.patch_size // config.scale_factor) ** 2


def _count_tiles(width: int, height: int, longest: int, side: int) -> int:
    """Count tiles with the steps and the arithmetic of the processor itself.

    Its `get_number_of_image_patches` gives slightly different numbers. The longer edge becomes
    `longest`, then both edges are rounded up to whole tiles; if there is more than one tile, the
    whole image is added as one more.
    """
    landscape = width >= height
    ratio = width / height
    long, short = longest, int(longest / ratio if landscape else longest * ratio)
    short = max(short + short % 2, 1)
    ratio = long / short if landscape else short / long
    long = math.ceil(long / side) * side
    short = math.ceil(int(long / ratio if landscape else long * ratio) / side) * side
    if max(long, short) <= side:
        return 1
    return (long // side) * (short // side) + 1
