"""A prompt of which most of the media is hidden: what does the policy know without looking?

Source: Wang et al. 2025 (PAPO), arXiv 2507.06448, section 3.2, and its code: square patches are made
black, each with the same chance. Differs: the times of a video share one draw of patches, and audio,
which the paper has not, is silenced in pieces.
"""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np
from PIL import Image

from vlmrl.data.prompt import with_media
from vlmrl.media_types import Audio, Decoded, Video
from vlmrl.models.base import Family
from vlmrl.schema import Prompt
from vlmrl.system.seeds import seed_of

__all__ = ["HIDDEN", "mask_media"]

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
