"""One JSON object a line on standard output, for programs: `kind`, and the fields of that kind of event.

Whatever else would write there (a verifier that prints, a library) goes to standard error meanwhile.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from vlmrl.runs.output.base import Activity, Output, beating
from vlmrl.runs.output.events import Event
from vlmrl.runs.output.lines import EVERY_S

__all__ = ["JsonLines"]


class JsonLines(Output):
    """Every event as an object; `silent`: none, but standard output stays clear of all else, too."""

    def __init__(self, silent: bool = False) -> None:
        self._silent = silent
        self._lock = threading.Lock()
        self._stack = contextlib.ExitStack()
        self._out: IO[str] = sys.stdout

    def __enter__(self) -> JsonLines:
        self._out = self._stack.enter_context(_own_stdout())
        return self

    def close(self) -> None:
        """Give standard output back."""
        self._stack.close()

    def say(self, event: Event) -> None:
        """Write an event."""
        self.pass_on(json.dumps(to_line(event), ensure_ascii=False, allow_nan=False) + "\n")

    def pass_on(self, text: str) -> None:
        """Write lines, each of which is an object."""
        if self._silent:
            return
        with self._lock:  # an activity speaks from a thread of its own
            self._out.write(text)
            self._out.flush()

    @contextlib.contextmanager
    def doing(self, what: str, total: int | None = None, before: int = 0) -> Iterator[Activity]:
        """Write that the block begins, how far it is every ten seconds, and that it has ended."""
        with super().doing(what, total, before) as activity:
            self.say(activity.state)
            try:
                with beating(lambda: self.say(activity.state), EVERY_S, EVERY_S):
                    yield activity
            finally:
                activity.end()
                self.say(activity.state)


def to_line(event: Event) -> dict[str, Any]:
    """Return the object that is written for an event; a number that is not finite is null."""
    fields = {f.name: getattr(event, f.name) for f in dataclasses.fields(event)}
    return {"kind": event.kind, **{name: _plain(value) for name, value in fields.items()}}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None  # NaN is not below either
    return str(value) if isinstance(value, Path) else value


@contextlib.contextmanager
def _own_stdout() -> Iterator[IO[str]]:
    """Yield standard output, which meanwhile is standard error for all others, processes started here too."""
    before = sys.stdout
    before.flush()
    if not _is_descriptor(before, 1) or not _is_descriptor(sys.stderr, 2):
        with contextlib.redirect_stdout(sys.stderr):
            yield before
        return
    own = os.dup(1)
    os.dup2(2, 1)
    with open(own, "w", encoding="utf-8") as out:
        try:
            yield out
        finally:
            before.flush()
            os.dup2(own, 1)


def _is_descriptor(stream: IO[str], number: int) -> bool:
    try:
        return stream.fileno() == number
    except (OSError, ValueError, AttributeError):
        return False
