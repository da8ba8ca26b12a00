"""A JSONL file that another process appends to, read a piece at a time: each line once.

A resumed run rewrites the file without the steps after its checkpoint; then reading begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["AppendedLines", "Numbers"]

Numbers = dict[str, float | int | bool | None]
"""A line of metrics.jsonl or sft.jsonl."""

MARK = 256
"""Bytes before the place read to that must be unchanged, or the file was rewritten."""


@dataclass
class AppendedLines:
    """What was read of a file of steps: `damaged` counts lines that are not, `starts` the beginnings.

    Each line is a JSON object of `kind` with its `step`.
    """

    path: Path
    kind: Any = Numbers
    damaged: int = 0
    starts: int = 0
    _offset: int = 0
    _mark: bytes = b""
    _decode: msgspec.json.Decoder[Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._decode = msgspec.json.Decoder(self.kind)

    def read(self) -> list[dict[str, Any]]:
        """Return the lines that are new: all, with one more in `starts`, of a rewritten file."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset - len(self._mark))
                if file.read(len(self._mark)) != self._mark:
                    self._begin_anew()
                    file.seek(0)
                new = file.read()
        except FileNotFoundError:
            if self._offset:
                self._begin_anew()
            return []
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        self._mark = (self._mark + whole)[-MARK:]
        return [line for text in whole.splitlines() if (line := self._parse(text)) is not None]

    def _begin_anew(self) -> None:
        self.starts += 1
        self.damaged, self._offset, self._mark = 0, 0, b""

    def _parse(self, text: bytes) -> dict[str, Any] | None:
        try:
            line: dict[str, Any] = self._decode.decode(text)
        except msgspec.DecodeError:
            line = {}
        if type(line.get("step")) is int:
            return line
        self.damaged += 1
        return None
