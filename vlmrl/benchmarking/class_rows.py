"""The images of Visual-RFT's lists of classes as rows of a benchmark: a `.pth` file, and names beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vlmrl.data.files.rows import WHERE
from vlmrl.errors import UserError

__all__ = ["class_rows"]

_DATA = "/data/"
"""Ends the part of an image's path that is the authors' own."""


def class_rows(file: Path) -> list[dict[str, Any]]:
    """Return one row an image: `file` below the authors' folder `data`, and the `name` of its class.

    The file is a list of `{path: {"label": number}}` as torch saves it; the names of the classes are
    the lines of the text file of the same stem. Nothing but tensors and plain values is loaded.

    Raises:
        UserError: there is no such file, or it is not of this form.
    """
    import torch  # slow to import

    try:
        names = file.with_suffix(".txt").read_text(encoding="utf-8").splitlines()
        listed = torch.load(file, weights_only=True)
        rows = []
        for number, one in enumerate(listed):
            ((path, found),) = one.items()
            name = names[int(found["label"])].strip()
            below = str(path).rpartition(_DATA)[2]
            rows.append({"file": below, "name": name, WHERE: f"{file.name} item {number}"})
        return rows
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from error
    except Exception as error:  # what torch raises of damage has no common class
        raise UserError(
            f"{file}: expected images and labels as Visual-RFT has them: {error}"
        ) from error
