"""A hint of contamination: which rows of a benchmark look like rows that a model was trained on.

It cannot prove that there is none: a copy that was cropped or a question that was reworded is not
found, and an image without detail may be taken for another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from vlmrl.answers.ngrams import tokens
from vlmrl.data.source import Source
from vlmrl.errors import UserError
from vlmrl.media.decode import decode
from vlmrl.media_types import PilImage
from vlmrl.schema import Sample

__all__ = ["Overlap", "find_overlap"]

WORDS = 8
"""Words in a row that two questions share; a shorter question is shared by chance."""
SIDE = 8
"""The hash of an image compares SIDE x SIDE pairs of neighbouring pixels."""
MAX_BITS = 3
"""Bits in which the hashes of one image in two sizes or formats may differ."""
MIN_DETAIL = 8
"""An image with fewer set bits in its hash, or fewer unset, is too plain to be told from others."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """Numbers of the rows that share an image, or eight words in a row, with the training data.

    `unread` counts training rows whose media cannot be read.
    """

    images: tuple[int, ...]
    texts: tuple[int, ...]
    rows: int
    unread: int


def find_overlap(benchmark: Source, train: Source) -> Overlap:
    """Compare every row of a benchmark with all training rows.

    Images are compared by their difference hash (64 bits), which survives another size or format;
    texts by runs of eight words.

    Raises:
        UserError: an image of the benchmark cannot be read.
    """
    images: set[int] = set()
    grams: set[tuple[str, ...]] = set()
    unread = 0
    for index in range(len(train.rows)):
        try:
            sample = train.sample(index)
            images |= set(_hashes(train, sample))
        except UserError:
            unread += 1
            continue
        grams |= set(_grams(sample.text))
    same_image, same_text = [], []
    seen = np.array(sorted(images), np.uint64)
    for index in range(len(benchmark.rows)):
        sample = benchmark.sample(index)
        if any(_is_near(found, seen) for found in _hashes(benchmark, sample)):
            same_image.append(index)
        if not grams.isdisjoint(_grams(sample.text)):
            same_text.append(index)
    return Overlap(tuple(same_image), tuple(same_text), len(benchmark.rows), unread)


def _hashes(source: Source, sample: Sample) -> Iterator[int]:
    for medium in decode(sample, source.access, source.reading):
        if isinstance(medium, PilImage):
            found = _hash(medium)
            if MIN_DETAIL <= found.bit_count() <= SIDE**2 - MIN_DETAIL:
                yield found


def _is_near(found: int, seen: npt.NDArray[np.uint64]) -> bool:
    """Return whether one of the hashes [N] differs in few bits."""
    bits = np.unpackbits((seen ^ np.uint64(found)).view(np.uint8).reshape(-1, 8), axis=1)
    return bool((bits.sum(1) <= MAX_BITS).any())


def _hash(image: PilImage) -> int:
    """Return the difference hash: is each of 8 x 8 places darker than its right neighbour?"""
    small = image.convert("L").resize((SIDE + 1, SIDE), Image.Resampling.BOX)
    pixels = np.asarray(small, dtype=np.int16)
    return int.from_bytes(np.packbits(pixels[:, :-1] < pixels[:, 1:]).tobytes(), "big")


def _grams(text: str) -> Iterator[tuple[str, ...]]:
    words = tokens(text)
    return (tuple(words[i : i + WORDS]) for i in range(len(words) - WORDS + 1))
