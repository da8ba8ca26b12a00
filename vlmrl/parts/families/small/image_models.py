"""Building small models of families with one vision tower, and perhaps one for audio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import transformers
from transformers import CONFIG_MAPPING

from vlmrl.config import BuildConfig
from vlmrl.errors import UserError
from vlmrl.parts.families.small import builder
from vlmrl.parts.families.small.builder import TIED, check_fields

VISION: Mapping[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 112,
    "patch_size": 14,
}
"""Default fields of a small vision tower."""


@dataclass(frozen=True, slots=True)
class SmallImageModel:
    """A recipe of small models: names of transformers classes and default config fields."""

    model: str
    config: str
    text: str
    """Model type of the language model."""
    vision: str
    """Model type of the vision tower."""
    format: builder.Format
    text_fields: Mapping[str, Any] = field(default_factory=dict)
    vision_fields: Mapping[str, Any] = field(default_factory=dict)
    audio: str = ""
    """Model type of the audio tower; empty: there is none."""
    audio_fields: Mapping[str, Any] = field(default_factory=dict)
    token_ids: Mapping[str, str] = field(default_factory=dict)
    """Field of the whole config -> the token whose id it takes."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the whole config."""
    vocabularies: tuple[str, str] | None = None
    """First of the ids that the projector of images embeds, and of those of audio, which are the last."""
    side: int = 0
    """Side of an image in pixels, where the tower's config does not have it."""
    shrink: int = 1
    """Side, in patches, of the square that becomes one token."""
    tile_tokens: str | None = None
    """Field of the whole config that takes the number of tokens per tile."""


def build(
    small: SmallImageModel, build: BuildConfig, corpus: Sequence[str], seed: int
) -> tuple[Any, Any]:
    """Build the model and its tokenizer, see `builder.build`."""
    return builder.build(
        small.model, lambda t: _config(small, build, t), build, corpus, seed, small.format
    )


def _config(small: SmallImageModel, build: BuildConfig, tokenizer: Any) -> Any:
    text_class, vision_class = CONFIG_MAPPING[small.text], CONFIG_MAPPING[small.vision]
    tokens = builder.token_fields(tokenizer, build)
    text_keys = {*text_class.__annotations__, *small.text_fields, TIED} - {*tokens} | {"vocab_size"}
    check_fields(build, "text", build.text, text_keys)
    check_fields(build, "vision", build.vision, {*vision_class.__annotations__})

    text, width = builder.text_fields(build, small.text_fields)
    vision = {**VISION, **small.vision_fields, **build.vision}
    builder.head_dim("vision", "hidden_size", vision, "num_attention_heads", 1)
    if "head_dim" in text_class.__annotations__:
        text["head_dim"] = width
    if "query_pre_attn_scalar" in text_class.__annotations__:
        text.setdefault("query_pre_attn_scalar", width)
    text.setdefault("rope_parameters", {**builder.ROPE})
    seen, heard = _vocabularies(small, tokenizer, tokens["vocab_size"])
    if "vocab_size_per_layer_input" in text_class.__annotations__:
        first = seen.get("vocab_offset", tokens["vocab_size"])
        text.setdefault("vocab_size_per_layer_input", first)
    tokens_of_tile = _count_tile_tokens(small, vision["image_size"], vision["patch_size"])
    known = {*vision_class.__annotations__, *small.vision_fields}
    vision = {key: value for key, value in vision.items() if key in known}
    tied = text.pop(TIED, False)
    fields = dict(small.fields)
    fields |= {key: tokenizer.convert_tokens_to_ids(t) for key, t in small.token_ids.items()}
    if small.tile_tokens is not None:
        fields[small.tile_tokens] = tokens_of_tile
    return getattr(transformers, small.config)(
        text_config={**text, **tokens, TIED: tied, "model_type": small.text},
        vision_config={**seen, **vision, "model_type": small.vision},
        **_audio_config(small, build, heard),
        tie_word_embeddings=tied,
        **fields,
    )


def _vocabularies(
    small: SmallImageModel, tokenizer: Any, size: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields that say which of `size` ids are those of images, and which those of audio."""
    if small.vocabularies is None:
        return {}, {}
    seen, heard = (tokenizer.convert_tokens_to_ids(first) for first in small.vocabularies)
    return (
        {"vocab_offset": seen, "vocab_size": heard - seen},
        {"vocab_offset": heard, "vocab_size": size - heard},
    )


def _audio_config(
    small: SmallImageModel, build: BuildConfig, vocabulary: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    fields = {*CONFIG_MAPPING[small.audio].__annotations__} if small.audio else set()
    check_fields(build, "audio", build.audio, fields)
    if not small.audio:
        return {}
    own = {**vocabulary, **small.audio_fields, **build.audio}
    return {"audio_config": {**own, "model_type": small.audio}}


def _count_tile_tokens(small: SmallImageModel, side: Any, patch: Any) -> int:
    whole = isinstance(side, int) and isinstance(patch, int) and min(side, patch) > 0
    if not whole or side < patch or side // patch % small.shrink:
        raise UserError(
            f"model.build.vision: image_size ({side!r}) must hold a multiple of {small.shrink} patches "
            f"a side (patch_size {patch!r})"
        )
    return (side // patch // small.shrink) ** 2
