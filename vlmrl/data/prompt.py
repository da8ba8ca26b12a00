"""A sample with its decoded images becomes a prompt that the model can read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlmrl.errors import UserError
from vlmrl.models.base import Family
from vlmrl.schema import Prompt, Sample


class PromptTooLong(UserError):
    """A prompt over the token limit: its row is dropped and counted, never cut."""


def make_prompt(
    sample: Sample,
    images: Sequence[Any],
    family: Family,
    processor: Any,
    max_tokens: int,
    instruction: str = "",
) -> Prompt:
    """The prompt of a sample: text rendered, images encoded once, frame of the first image.

    `images` are the decoded media of the sample (RGB PIL images), in order; `instruction` is
    appended to its last text. The frame tells in which space the model writes coordinates.

    Raises:
        PromptTooLong: more than `max_tokens` tokens, media included.
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
    if len(encoded.ids) > max_tokens:
        raise PromptTooLong(
            f"sample {sample.id!r}: the prompt has {len(encoded.ids)} tokens, "
            f"more than data.max_prompt_tokens ({max_tokens})"
        )
    frame = family.frame(processor, images[0].size if images else None)
    return Prompt(sample=sample, text=text, encoded=encoded, frame=frame, images=tuple(images))
