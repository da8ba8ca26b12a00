"""Building small models of the Qwen vision-language families and their relatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import transformers

from vlmrl.config import BuildConfig
from vlmrl.models.chat import chatml
from vlmrl.parts.families.small import builder
from vlmrl.parts.families.small.builder import TIED, check_fields

CHAT_TEMPLATE = chatml(
    image="<|vision_start|><|image_pad|><|vision_end|>",
    video="<|vision_start|><|video_pad|><|vision_end|>",
)
TOKEN_IDS = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}


@dataclass(frozen=True, slots=True)
class SmallQwenModel:
    """A recipe of small models: names of transformers classes and default config fields."""

    model: str
    config: str
    processor: str
    video_processor: str
    vision: Mapping[str, Any]
    image_processor: str = "Qwen2VLImageProcessor"
    text: Mapping[str, Any] = field(default_factory=dict)
    vision_width: str = "hidden_size"
    """The field of the vision config for the width of the tower."""
    vision_out: str = "out_hidden_size"
    """The field of the vision config that must equal the language model's hidden size."""
    side_share: float = 24 / 64
    """The share of rotary frequencies that M-RoPE gives to rows, and the same share to columns."""
    interleaved: bool = False
    """Whether M-RoPE interleaves the frequencies of time, rows and columns; only vLLM reads it."""
    rotated_share: float = 1.0
    """The share of each head that M-RoPE rotates."""
    text_ties: bool = False
    """Whether the text config has its own `tie_word_embeddings`."""
    format: builder.Format | None = None
    chat_template: str = CHAT_TEMPLATE
    token_ids: Mapping[str, str] = field(default_factory=lambda: TOKEN_IDS)
    """Field of the whole config -> the token whose id it takes."""


def build(
    small: SmallQwenModel, build: BuildConfig, corpus: Sequence[str], seed: int
) -> tuple[Any, Any]:
    """Build the model and its processor, see `builder.build`."""
    model, tokenizer = builder.build(
        small.model, lambda t: _config(small, build, t), build, corpus, seed, small.format
    )
    return model, _processor(small, model.config.vision_config, tokenizer)


def _config(small: SmallQwenModel, build: BuildConfig, tokenizer: object) -> Any:
    config_class = getattr(transformers, small.config)
    tokens = builder.token_fields(tokenizer, build)
    fields = config_class.sub_configs["text_config"].__annotations__.keys()
    # Where all MLPs are experts a config has no width of others; it is then not read.
    known = {*fields, *builder.TEXT, *small.text, TIED} - {*tokens} | {"vocab_size"}
    check_fields(build, "text", build.text, known)
    fields = config_class.sub_configs["vision_config"].__annotations__.keys()
    check_fields(build, "vision", build.vision, {*fields} - {small.vision_out})

    text, width = builder.text_fields(build, small.text)
    text["head_dim"] = width
    vision = {**small.vision, **build.vision}
    builder.head_dim("vision", small.vision_width, vision, "num_heads", 4)
    text.setdefault("rope_parameters", _rope(small, width))
    tied = text.pop(TIED, False)
    return config_class(
        text_config={**text, **tokens, **({TIED: tied} if small.text_ties else {})},
        vision_config={**vision, small.vision_out: text["hidden_size"]},
        tie_word_embeddings=tied,
        **_media_tokens(small, tokenizer),
    )


def _media_tokens(small: SmallQwenModel, tokenizer: Any) -> dict[str, int]:
    return {key: tokenizer.convert_tokens_to_ids(t) for key, t in small.token_ids.items()}


def _rope(small: SmallQwenModel, head_dim: int) -> dict[str, Any]:
    rope = mrope(int(head_dim * small.rotated_share), small.side_share)
    if small.rotated_share < 1:
        rope["partial_rotary_factor"] = small.rotated_share
    return {**rope, "mrope_interleaved": True} if small.interleaved else rope


def mrope(head_dim: int, side_share: float = 24 / 64) -> dict[str, Any]:
    """Return rotary parameters with a share of the frequencies for rows and the same for columns."""
    frequencies = head_dim // 2
    side = int(frequencies * side_share)
    return {**builder.ROPE, "mrope_section": [frequencies - 2 * side, side, side]}


def _processor(small: SmallQwenModel, vision: object, tokenizer: object) -> Any:
    of_images, of_videos = pixel_settings(vision)
    return getattr(transformers, small.processor)(
        image_processor=getattr(transformers, small.image_processor)(**of_images),
        tokenizer=tokenizer,
        video_processor=getattr(transformers, small.video_processor)(**of_videos),
        chat_template=small.chat_template,
    )


def pixel_settings(vision: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of the image and the video processor that match a vision tower."""
    factor = vision.patch_size * vision.spatial_merge_size
    shared = {
        "patch_size": vision.patch_size,
        "temporal_patch_size": vision.temporal_patch_size,
        "merge_size": vision.spatial_merge_size,
        "size": {"shortest_edge": 4 * factor**2, "longest_edge": 1280 * factor**2},
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    sizes = {"shortest_edge": factor**2, "longest_edge": 8192 * factor**2}
    return shared, {**shared, "size": sizes}
