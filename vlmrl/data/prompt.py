"""A sample with its decoded images becomes a prompt that the model can read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlmrl.errors import UserError
from vlmrl.models.base import Family
from vlmrl.schema import Prompt, Sample


def make_prompt(
    sample: Sample,
    images: Sequence[Any],
    family: Family,
    processor: Any,
    instruction: str = "",
) -> Prompt:
    """The prompt of a sample: text rendered, images encoded once, frame of the first image.

    `images` are the decoded media of the sample (RGB PIL images), in order; `instruction` is
    appended to its last text. The frame tells in which space the model writes coordinates.

    Raises:
        UserError: the images do not fit the sample, or the family cannot show one of its parts.
    """
    if len(images) != len(sample.media):
        raise UserError(
            f"sample {sample.id!r}: {len(images)} decoded images for {len(sample.media)} media"
        )
    text = family.render(processor, sample, instruction)
    try:
        encoded = family.encode(processor, text, images)
    except UserError as error:
        raise UserError(f"sample {sample.id!r}: {error}") from error
    frame = family.frame(processor, images[0].size if images else None)
    return Prompt(sample=sample, text=text, encoded=encoded, frame=frame, images=tuple(images))
