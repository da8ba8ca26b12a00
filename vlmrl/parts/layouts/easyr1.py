"""EasyR1's rows: a problem with image marks, an answer and the images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.data.layout import DataPlace, Layout
from vlmrl.parts.layouts.row_forms import media_columns, read_reply, read_turns


@dataclass(frozen=True)
class Easyr1(Layout):
    """Rows with `problem`, `answer` and `images` (Parquet with the images' bytes).

    A row: {"images": [{"bytes": ..., "path": null}], "problem": "<image>Find x.", "answer": "48"}.

    Source: EasyR1, verl/utils/dataset.py, and the data set hiyouga/geometry3k.
    """

    title: ClassVar[str] = "EasyR1"
    origin: ClassVar[str] = "EasyR1, Zheng et al. 2025, https://github.com/hiyouga/EasyR1"
    fields: ClassVar[Mapping[str, str]] = {
        "question": "problem",
        "image": "images",
        "video": "videos",
        "answer": "answer",
        "number": "answer",
        "boxes": "answer",
    }

    def recognise(self, place: DataPlace) -> str | None:
        """Return why a place holds EasyR1's rows."""
        fits = place.has_keys("problem", "answer") and not place.has_keys("solution")
        return "rows have `problem` and `answer`" if fits else None

    def read(self, row: Mapping[str, object], place: DataPlace) -> dict[str, Any]:
        """Return a row under our keys."""
        turns = [{"role": "user", "content": row.get("problem")}]
        ours, _ = read_turns(turns, media_columns(row), "problem")
        stated = {"id": row.get("id"), **ours}
        return {**stated, **read_reply(row.get("answer"), ours["question"], "answer")}
