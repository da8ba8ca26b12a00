"""Builds small Qwen models: real architecture, random weights, own tokenizer and processor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError

from vlmrl.config import BuildConfig
from vlmrl.errors import UserError
from vlmrl.models import _tokenizer
from vlmrl.plugins import nearest

# The turns of Qwen2.5-VL's template without its default system turn, of no use to a small model.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

TEXT: Mapping[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 288,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,  # head_dim 32 is the least that vLLM's CPU build takes
    "max_position_embeddings": 32768,
    "initializer_range": 0.05,
}
TIED = "tie_word_embeddings"
ROPE_THETA = 100.0
"""Short prompts of a small model need no slowly turning dimensions."""


@dataclass(frozen=True, slots=True)
class Small:
    """How a family's small model is made: names of transformers classes, default config fields."""

    model: str
    config: str
    processor: str
    video_processor: str
    vision: Mapping[str, Any]
    vision_width: str = "hidden_size"
    """The vision field for the tower's own width."""
    vision_out: str = "out_hidden_size"
    """The vision field that must equal the language model's hidden size."""
    side_share: float = 24 / 64
    """Share of the rotary frequencies that M-RoPE gives to rows, and as many to columns."""
    interleaved: bool = False
    """Whether M-RoPE mixes time, row and column frequencies; vLLM asks, transformers knows."""


def build(small: Small, build: BuildConfig, corpus: Sequence[str], seed: int) -> tuple[Any, Any]:
    """The model (float32, evaluation mode, weights drawn from `seed`) and its processor.

    Raises:
        UserError: an override that the architecture does not have or cannot take.
    """
    tokenizer = _tokenizer.train(corpus, build.vocab_size)
    try:
        config = _config(small, build, tokenizer)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = getattr(transformers, small.model)(config).eval()
    except (StrictDataclassError, ValueError, KeyError) as error:
        raise UserError(f"model.build: {' '.join(str(error).split())}") from error
    model.generation_config.update(
        eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id],
        pad_token_id=tokenizer.pad_token_id,
    )
    return model, _processor(small, config.vision_config, tokenizer)


def _config(small: Small, build: BuildConfig, tokenizer: Any) -> Any:
    config_class = getattr(transformers, small.config)
    fields = config_class.sub_configs["text_config"].__annotations__.keys()
    check_fields(
        build, "text", build.text, {*fields, TIED} - {*token_fields(tokenizer), "head_dim"}
    )
    fields = config_class.sub_configs["vision_config"].__annotations__.keys()
    check_fields(build, "vision", build.vision, {*fields} - {small.vision_out})

    text = {**TEXT, **build.text}
    vision = {**small.vision, **build.vision}
    heads = text["num_attention_heads"]
    text.setdefault("num_key_value_heads", heads)
    text["head_dim"] = head_dim("text", "hidden_size", text, "num_attention_heads", 2)
    head_dim("vision", small.vision_width, vision, "num_heads", 4)
    if heads % text["num_key_value_heads"]:
        raise UserError("model.build.text: num_key_value_heads must divide num_attention_heads")
    rope = mrope(text["head_dim"], small.side_share, small.interleaved)
    text.setdefault("rope_parameters", rope)
    tied = text.pop(TIED, False)
    token = tokenizer.convert_tokens_to_ids
    return config_class(
        text_config={**text, **token_fields(tokenizer)},
        vision_config={**vision, small.vision_out: text["hidden_size"]},
        tie_word_embeddings=tied,
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
    )


def token_fields(tokenizer: Any) -> dict[str, int | None]:
    """The fields of a text config that its tokenizer sets."""
    return {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def check_fields(
    build: BuildConfig, part: str, overrides: Mapping[str, Any], fields: set[str]
) -> None:
    """Raise UserError if the config sets a field that the architecture does not have."""
    for key in overrides:
        if key not in fields:
            raise UserError(
                f"model.build.{part}: {build.family} has no {key!r} to set"
                f"{nearest(key, sorted(fields))}"
            )


def head_dim(
    part: str, width_key: str, fields: Mapping[str, Any], heads_key: str, multiple: int
) -> int:
    """Width of one head; rotary embeddings turn it in pairs, the vision tower's on two axes."""
    width, heads = fields[width_key], fields[heads_key]
    whole = isinstance(width, int) and isinstance(heads, int) and min(width, heads) > 0
    if not whole or width % (multiple * heads):
        raise UserError(
            f"model.build.{part}: {width_key} ({width!r}) must be a multiple of "
            f"{multiple} * {heads_key} ({heads!r})"
        )
    return width // heads


def mrope(head_dim: int, side_share: float = 24 / 64, interleaved: bool = False) -> dict[str, Any]:
    """Rotary parameters with a share of the frequencies for rows, and as many for columns."""
    frequencies = head_dim // 2
    side = int(frequencies * side_share)
    sections = [frequencies - 2 * side, side, side]
    rope = {"rope_type": "default", "rope_theta": ROPE_THETA, "mrope_section": sections}
    return {**rope, "mrope_interleaved": True} if interleaved else rope


def _processor(small: Small, vision: Any, tokenizer: Any) -> Any:
    of_images, of_clips = pixel_settings(vision)
    return getattr(transformers, small.processor)(
        image_processor=transformers.Qwen2VLImageProcessor(**of_images),
        tokenizer=tokenizer,
        video_processor=getattr(transformers, small.video_processor)(**of_clips),
        chat_template=CHAT_TEMPLATE,
    )


def pixel_settings(vision: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of the image and of the video processor that go with a vision tower."""
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
