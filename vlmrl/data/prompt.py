"""A sample with its decoded media becomes a prompt that the model can read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from vlmrl.errors import UserError
from vlmrl.media_types import Decoded
from vlmrl.models.base import Family
from vlmrl.schema import Prompt, Sample, Turn
from vlmrl.truths import prompting

__all__ = ["continue_prompt", "make_prompt", "with_media"]


def make_prompt(
    sample: Sample,
    media: Sequence[Decoded],
    family: Family,
    processor: Any,
    instruction: str = "",
) -> Prompt:
    """Return the prompt of a sample: text rendered, media encoded once, frame of its `main_medium`.

    `media` are the sample's, decoded, in order; `instruction` is appended to the last text of the
    question. The frame tells in which space the model writes coordinates.

    Raises:
        UserError: the media do not fit the sample, or the family cannot show one of its parts.
    """
    if len(media) != len(sample.media):
        raise UserError(f"sample {sample.id!r}: {len(media)} decoded for {len(sample.media)} media")
    turns = (*_write_examples(sample, media, family, processor), *sample.history)
    shown = replace(sample, history=turns, examples=()) if sample.examples else sample
    text = family.render(processor, shown, instruction)
    try:
        encoded = family.encode(processor, text, media)
    except UserError as error:
        raise UserError(f"sample {sample.id!r}: {error}") from error
    main = sample.main_medium
    frames = tuple(family.frame(processor, medium) for medium in media)
    frame = family.frame(processor, None) if main is None else frames[main]
    return Prompt(sample, text, encoded, frame, tuple(media), turns, frames=frames)


def _write_examples(
    sample: Sample, media: Sequence[Decoded], family: Family, processor: Any
) -> Iterator[Turn]:
    """Yield the turns of a sample's examples, their answers in the model's space."""
    left = iter(media)
    for example in sample.examples:
        own = list(itertools.islice(left, len(example.media)))
        main = example.main_medium
        frame = family.frame(processor, None if main is None else own[main])
        if example.demo is None:
            raise UserError(
                f"example {example.id!r} has no demonstration, so its answer is unknown"
            )
        yield from example.turns
        answer = prompting.demonstrate(example.demo, example.template, frame, form=sample.form)
        yield Turn("assistant", (answer,))


def with_media(prompt: Prompt, media: Sequence[Decoded], family: Family, processor: Any) -> Prompt:
    """Return the prompt with other media of the same kinds and sizes as its own."""
    encoded = family.encode(processor, prompt.text, media)
    return replace(prompt, encoded=encoded, media=tuple(media))


def continue_prompt(prompt: Prompt, ids: Sequence[int]) -> Prompt:
    """Return the prompt continued by these text tokens."""
    encoded = prompt.encoded
    end = encoded.next_position + len(ids)
    places = torch.arange(encoded.next_position, end).expand(len(encoded.position_ids), -1)
    longer = replace(
        encoded,
        ids=(*encoded.ids, *ids),
        compact_ids=(*encoded.compact_ids, *ids),
        position_ids=torch.cat([encoded.position_ids, places], dim=1),
        next_position=end,
    )
    return replace(prompt, encoded=longer)
