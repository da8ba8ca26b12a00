"""LLaVA's JSON: a list of samples with an image and a conversation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.data.layout import DataPlace, Layout
from vlmrl.parts.layouts.row_forms import has_turns, media_columns, read_reply, read_turns


@dataclass(frozen=True)
class Llava(Layout):
    r"""Samples with `image` and `conversations`, the last reply of `gpt` being the answer.

    A row: {"id": "1", "image": "a.jpg", "conversations": [{"from": "human", "value":
    "<image>\nHow many dogs?"}, {"from": "gpt", "value": "2"}]}.

    Source: https://github.com/haotian-liu/LLaVA/blob/main/docs/Finetune_Custom_Data.md.
    """

    title: ClassVar[str] = "LLaVA JSON"
    origin: ClassVar[str] = "LLaVA, Liu et al. 2023, arXiv 2304.08485"
    fields: ClassVar[Mapping[str, str]] = {
        "question": "conversations",
        "history": "conversations",
        "image": "image",
        "answer": "conversations",
        "boxes": "conversations",
    }

    def recognise(self, place: DataPlace) -> str | None:
        """Return why a place holds LLaVA's samples."""
        fits = has_turns(place, "conversations", "from") and not place.has_keys("images")
        return "rows have `conversations` with from and value" if fits else None

    def read(self, row: Mapping[str, object], place: DataPlace) -> dict[str, Any]:
        """Return a row under our keys."""
        key = "conversations"
        ours, reply = read_turns(row.get(key), media_columns(row), key, "from", "value")
        return {"id": row.get("id"), **ours, **read_reply(reply, ours["question"], key)}
