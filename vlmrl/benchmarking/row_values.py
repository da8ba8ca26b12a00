"""Values of a published row that stand there in another form: lists as text, masks as images."""

from __future__ import annotations

import ast
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from pycocotools import mask as coco

from vlmrl.data.files.rows import WHERE
from vlmrl.errors import UserError

__all__ = ["box_of_mask", "mask_of", "numbers_of", "texts_of"]

MAX_CHARS = 20_000
"""Longest list that is read."""


def texts_of(row: Mapping[str, Any], column: str) -> list[str]:
    """Return the texts of a column with a list of them as Python writes it; nothing is evaluated.

    Raises:
        UserError: the column holds anything else.
    """
    return [str(one) for one in _listed(row, column, (str, int, float))]


def numbers_of(row: Mapping[str, Any], column: str) -> list[float]:
    """Return the numbers of a column with a list of them, or with such a list as Python writes it.

    Raises:
        UserError: the column holds anything else.
    """
    return [float(one) for one in _listed(row, column, (int, float))]


def _listed(row: Mapping[str, Any], column: str, kinds: tuple[type, ...]) -> list[Any]:
    value = row.get(column)
    where = f"{row.get(WHERE, 'row')}: column {column!r}: expected a list"
    if isinstance(value, str):
        if len(value) > MAX_CHARS:
            raise UserError(f"{where} of at most {MAX_CHARS} characters, got {len(value)}")
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
            raise UserError(f"{where}, got {value!r:.60}") from error
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, list) or not all(
        isinstance(one, kinds) and not isinstance(one, bool) for one in value
    ):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise UserError(f"{where} of {names}, got {value!r:.60}")
    return value


def mask_of(row: Mapping[str, Any], column: str) -> dict[str, Any]:
    """Return a mask as run lengths: an image, of which pixels from half brightness on count, or bits.

    Raises:
        UserError: the column holds neither.
    """
    found = coco.encode(np.asfortranarray(_bits(row, column), dtype=np.uint8))
    return {"size": [int(n) for n in found["size"]], "counts": found["counts"].decode("ascii")}


def box_of_mask(row: Mapping[str, Any], column: str) -> list[float]:
    """Return the box xyxy in pixels around a mask; an empty one has none, and is an error.

    Raises:
        UserError: the column holds no mask, or an empty one.
    """
    high, wide = np.nonzero(_bits(row, column))
    if not len(high):
        where = f"{row.get(WHERE, 'row')}: column {column!r}"
        raise UserError(f"{where}: expected a mask with a pixel in it, got an empty one")
    return [float(n) for n in (wide.min(), high.min(), wide.max() + 1, high.max() + 1)]


def _bits(row: Mapping[str, Any], column: str) -> npt.NDArray[np.bool_]:
    """Return the pixels of a mask, [height, width]."""
    value = row.get(column)
    try:
        if isinstance(value, (list, np.ndarray)):
            bits = np.array([np.asarray(line, dtype=bool) for line in value])
            if bits.ndim == 2:
                return bits
            raise ValueError(f"lists of shape {bits.shape}")
        data = value.get("bytes") if isinstance(value, Mapping) else value
        with Image.open(io.BytesIO(data)) as image:  # type: ignore[arg-type]
            bright = np.asarray(image.convert("L") if image.mode == "P" else image)
    except (OSError, TypeError, ValueError, Image.DecompressionBombError) as error:
        where = f"{row.get(WHERE, 'row')}: column {column!r}"
        raise UserError(f"{where}: expected an image of a mask, got {error}") from error
    if bright.ndim == 3:
        bright = bright[:, :, 0]
    full = 1 if bright.dtype == bool else 255
    return np.asarray(np.round(bright / full) > 0)
