"""A sample with its decoded media becomes a prompt that the model can read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vlmrl.errors import UserError
from vlmrl.media_types import Decoded
from vlmrl.models.base import Family
from vlmrl.schema import Prompt, Sample

__all__ = ["make_prompt", "with_media"]


def make_prompt(
    sample: Sample,
    media: Sequence[Decoded],
    family: Family,
    processor: Any,
    instruction: str = "",
) -> Prompt:
    """Return the prompt of a sample: text rendered, media encoded once, frame of the first of them.

    `media` are the sample's, decoded, in order; `instruction` is
    appended to its last text. The frame tells in which space the model writes coordinates.

    Raises:
        UserError: the media do not fit the sample, or the family cannot show one of its parts.
    """
    if len(media) != len(sample.media):
        raise UserError(f"sample {sample.id!r}: {len(media)} decoded for {len(sample.media)} media")
    text = family.render(processor, sample, instruction)
    try:
        encoded = family.encode(processor, text, media)
    except UserError as error:
        raise UserError(f"sample {sample.id!r}: {error}") from error
    frame = family.frame(processor, media[0] if media else None)
    return Prompt(sample=sample, text=text, encoded=encoded, frame=frame, media=tuple(media))


def with_media(prompt: Prompt, media: Sequence[Decoded], family: Family, processor: Any) -> Prompt:
    """Return the prompt with other media of the same kinds and sizes as its own."""
    encoded = family.encode(processor, prompt.text, media)
    return replace(prompt, encoded=encoded, media=tuple(media))
