"""A sample with its decoded media becomes a prompt that the model can read."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from PIL import Image

from vlmrl.errors import UserError
from vlmrl.models.base import Family
from vlmrl.schema import Prompt, Sample, Turn
from vlmrl.schema.media import Audio, Decoded, Video
from vlmrl.system.seeds import seed_of
from vlmrl.truths import prompting


def make_prompt(
    sample: Sample,
    media: Sequence[Decoded],
    family: Family,
    processor: object,
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
    sample: Sample, media: Sequence[Decoded], family: Family, processor: object
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


def with_media(
    prompt: Prompt, media: Sequence[Decoded], family: Family, processor: object
) -> Prompt:
    """Return the prompt with other media of the same kinds and sizes as its own."""
    encoded = family.encode(processor, prompt.text, media)
    return replace(prompt, encoded=encoded, media=tuple(media))


def without_tensors(prompt: Prompt) -> Prompt:
    """Return the prompt with decoded media alone, a fraction of their tensors; `with_media` makes those."""
    return replace(prompt, encoded=replace(prompt.encoded, tensors={}))


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


# --------------------------------------------------------------------------------------------------
# A prompt of which most of the media is hidden: what does the policy know without looking?
#
# Source: Wang et al. 2025 (PAPO), arXiv 2507.06448, section 3.2, and its code: square patches are made
# black, each with the same chance. Differs: the times of a video share one draw of patches, and audio,
# which the paper has not, is silenced in pieces.


HIDDEN = 0.6
"""Chance of a patch to be hidden."""
PATCH = 14
"""Side of a patch, in pixels."""
PIECE_S = 0.1
"""Length of a piece of audio, in seconds."""


def mask_media(prompt: Prompt, family: Family, processor: object, seed: int) -> Prompt:
    """Return the prompt with most of its media hidden, by `seed` and the sample alone."""
    if not prompt.media:
        return prompt
    rng = np.random.default_rng(seed_of(seed, zlib.crc32(prompt.sample.id.encode())))
    return with_media(prompt, [_hide(medium, rng) for medium in prompt.media], family, processor)


def _hide(medium: Decoded, rng: np.random.Generator) -> Decoded:
    if isinstance(medium, Audio):
        return _silence(medium, rng)
    if isinstance(medium, Video):
        shown = _draw_patches(medium.frames.shape[1:3], rng)
        audio = medium.audio and _silence(medium.audio, rng)
        return replace(medium, frames=medium.frames * shown[None, :, :, None], audio=audio)
    pixels = np.asarray(medium)
    return Image.fromarray(pixels * _draw_patches(pixels.shape[:2], rng)[:, :, None])


def _draw_patches(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Return which pixels stay, uint8 [H, W] of 0 and 1."""
    shown = rng.random([-(-side // PATCH) for side in shape]) >= HIDDEN
    whole = shown.repeat(PATCH, 0).repeat(PATCH, 1)
    return whole[: shape[0], : shape[1]].astype(np.uint8)


def _silence(audio: Audio, rng: np.random.Generator) -> Audio:
    piece = max(1, round(PIECE_S * audio.rate))
    heard = rng.random(-(-len(audio.samples) // piece)) >= HIDDEN
    kept = heard.repeat(piece)[: len(audio.samples)]
    return replace(audio, samples=audio.samples * kept.astype(audio.samples.dtype))
