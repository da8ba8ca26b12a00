"""Chats as lists of messages with a role and a content, as chat APIs and TRL's trainers write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.data.layout import DataPlace, Layout
from vlmrl.parts.layouts.row_forms import has_turns, media_columns, read_reply, read_turns


@dataclass(frozen=True)
class Messages(Layout):
    """Chats under `messages`, the last assistant's message being the answer.

    A row: {"messages": [{"role": "user", "content": "<image>How many dogs?"}, {"role": "assistant",
    "content": "2"}], "images": ["a.jpg"]}. Where the last message is no assistant's, the answer stands under
    `solution` or `answer`. Messages with `tool_calls` after the question, and those of the role `tool`, are
    the turns of a demonstration.
    """

    title: ClassVar[str] = "chat messages"
    origin: ClassVar[str] = "TRL, OpenAI, LLaMA-Factory (ShareGPT with OpenAI's tags)"
    fields: ClassVar[Mapping[str, str]] = {
        "question": "messages",
        "system": "messages",
        "history": "messages",
        "turns": "messages",
        "image": "images",
        "answer": "messages",
        "boxes": "messages",
    }

    def recognise(self, place: DataPlace) -> str | None:
        """Return why a place holds chats."""
        fits = has_turns(place, "messages", "role")
        return "rows have `messages` with role and content" if fits else None

    def read(self, row: Mapping[str, object], place: DataPlace) -> dict[str, Any]:
        """Return a row under our keys."""
        ours, reply = read_turns(row.get("messages"), media_columns(row), "messages")
        key = "messages" if reply is not None else "answer" if "answer" in row else "solution"
        answer = reply if reply is not None else row.get(key)
        return {"id": row.get("id"), **ours, **read_reply(answer, ours["question"], key)}
