"""Building small models with a real architecture and random weights: the steps all families share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError

from vlmrl.config import BuildConfig
from vlmrl.errors import UserError
from vlmrl.models.small import byte_tokenizer
from vlmrl.plugins import nearest

TEXT: Mapping[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 288,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,  # head_dim 32 is the smallest that vLLM's CPU build takes
    "max_position_embeddings": 32768,
    "initializer_range": 0.05,
}
TIED = "tie_word_embeddings"
ROPE = {"rope_type": "default", "rope_theta": 100.0}
"""Rotary parameters; the short prompts of a small model need no low frequencies."""


def build(
    model_class: str,
    config_of: Callable[[Any], Any],
    build: BuildConfig,
    corpus: Sequence[str],
    seed: int,
    format: byte_tokenizer.Format | None = None,
) -> tuple[Any, Any]:
    """Build a model (float32, evaluation mode, weights drawn from `seed`) and its tokenizer.

    The tokenizer is trained on `corpus`; `config_of` makes the model's config from it.

    Raises:
        UserError: The architecture does not have an overridden field or rejects its value.
    """
    tokenizer = byte_tokenizer.train(corpus, build.vocab_size, format)
    try:
        config = config_of(tokenizer)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = getattr(transformers, model_class)(config).eval()
    except (StrictDataclassError, ValueError, KeyError) as error:
        raise UserError(f"model.build: {' '.join(str(error).split())}") from error
    model.generation_config.update(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id],
        pad_token_id=tokenizer.pad_token_id,
    )
    return model, tokenizer


def token_fields(tokenizer: Any) -> dict[str, int | None]:
    """Return the fields of a text config that its tokenizer determines."""
    return {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def check_fields(
    build: BuildConfig, part: str, overrides: Mapping[str, Any], fields: set[str]
) -> None:
    """Check that the architecture has every field that the config sets.

    Raises:
        UserError: It lacks one; the message names the nearest field.
    """
    for key in overrides:
        if key not in fields:
            raise UserError(
                f"model.build.{part}: {build.family} has no field {key!r}"
                f"{nearest(key, sorted(fields))}"
            )


def text_fields(build: BuildConfig, own: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the fields of the language model, with the family's `own`, and the width of one head.

    Raises:
        UserError: The widths and the numbers of heads do not match.
    """
    text = {**TEXT, **own, **build.text}
    heads = text["num_attention_heads"]
    text.setdefault("num_key_value_heads", heads)
    width = head_dim("text", "hidden_size", text, "num_attention_heads", 2)
    if heads % text["num_key_value_heads"]:
        raise UserError("model.build.text: num_key_value_heads must divide num_attention_heads")
    return text, width


def head_dim(
    part: str, width_key: str, fields: Mapping[str, Any], heads_key: str, multiple: int
) -> int:
    """Return the width of one head, which rotary embeddings need to be a multiple of `multiple`.

    Raises:
        UserError: The width is not a multiple of `multiple` times the number of heads.
    """
    width, heads = fields[width_key], fields[heads_key]
    whole = isinstance(width, int) and isinstance(heads, int) and min(width, heads) > 0
    if not whole or width % (multiple * heads):
        raise UserError(
            f"model.build.{part}: {width_key} ({width!r}) must be a multiple of "
            f"{multiple} * {heads_key} ({heads!r})"
        )
    return width // heads
