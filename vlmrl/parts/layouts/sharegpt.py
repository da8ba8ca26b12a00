"""LLaMA-Factory's ShareGPT format: conversations with lists of media, a system text beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.data.layout import DataPlace, Layout
from vlmrl.parts.layouts.row_forms import has_turns, media_columns, read_reply, read_turns


@dataclass(frozen=True)
class Sharegpt(Layout):
    """Samples with `conversations` and `images`, `videos`, `audios` or `system` beside them.

    A row: {"conversations": [{"from": "human", "value": "<image>How many dogs?"}, {"from": "gpt",
    "value": "2"}], "images": ["a.jpg"], "system": "Be brief."}. Turns `function_call` and
    `observation` after the question are those of a demonstration.

    Source: LLaMA-Factory, data/README.md.
    """

    title: ClassVar[str] = "LLaMA-Factory ShareGPT"
    origin: ClassVar[str] = "LLaMA-Factory, Zheng et al. 2024, arXiv 2403.13372"
    narrows: ClassVar[tuple[str, ...]] = ("llava",)
    fields: ClassVar[Mapping[str, str]] = {
        "question": "conversations",
        "history": "conversations",
        "turns": "conversations",
        "system": "system",
        "image": "images",
        "video": "videos",
        "audio": "audios",
        "answer": "conversations",
        "boxes": "conversations",
    }

    def recognise(self, place: DataPlace) -> str | None:
        """Return why a place holds ShareGPT's samples."""
        beside = [key for key in ("images", "videos", "audios", "system") if place.has_keys(key)]
        if not beside or not has_turns(place, "conversations", "from"):
            return None
        return f"rows have `conversations` with from and value, and `{beside[0]}`"

    def read(self, row: Mapping[str, object], place: DataPlace) -> dict[str, Any]:
        """Return a row under our keys."""
        key = "conversations"
        ours, reply = read_turns(row.get(key), media_columns(row), key, "from", "value")
        system = ours["system"] or row.get("system")
        stated = {"id": row.get("id"), **ours, "system": system}
        return {**stated, **read_reply(reply, ours["question"], key)}
