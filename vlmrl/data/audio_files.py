"""Audio files that a card puts together: read now, written again as one medium."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO

import numpy as np

from vlmrl.errors import import_extra
from vlmrl.media.access import Access, access_given, reference
from vlmrl.media.decode import decode
from vlmrl.schema import Media, Sample, Truth
from vlmrl.schema.media import Audio


def read(names: Sequence[str], folder: str, card: str) -> list[Audio]:
    """Return audio files of a folder, mono at the rate of the config.

    Raises:
        MediaError: one of them cannot be read.
    """
    media = tuple(reference(name, folder, "audio") for name in names)
    apart = Sample("apart", card, media, Truth())
    return [a for a in decode(apart, access_given(Access(folder))) if isinstance(a, Audio)]


def write(samples: np.ndarray, rate: int) -> Media:
    """Return samples [N] from -1 to 1 as a medium, a 16-bit WAV file."""
    soundfile = import_extra("soundfile", "audio")
    soundfile.write(file := BytesIO(), samples, rate, format="WAV", subtype="PCM_16")
    return reference(file.getvalue(), kind="audio")
