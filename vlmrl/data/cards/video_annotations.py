"""What cards of published video data share: finding a video's file, and spans checked against it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vlmrl.errors import UserError
from vlmrl.schema import Frame, Media, Truth
from vlmrl.truths import json_form

__all__ = ["spans_truth", "video_named"]

ENDINGS = (".mp4", ".mkv", ".webm", ".avi", ".mov")


def video_named(folder: Path, name: str) -> Media:
    """Find the video `name` in a folder, whatever its ending; a missing one is called `.mp4`.

    Raises:
        UserError: the name leads out of the folder.
    """
    if not name or Path(name).is_absolute() or ".." in Path(name).parts:
        raise UserError(f"{name!r} is no name of a video")
    for ending in ENDINGS:
        if (path := folder / f"{name}{ending}").is_file():
            return Media("video", path=str(path))
    return Media("video", path=str(folder / f"{name}.mp4"))


def spans_truth(spans: Sequence[Any], duration: float | None, **others: Any) -> Truth:
    """Build a truth of spans in seconds; those past the video's end are cut at `duration`.

    Raises:
        UserError: a span is no two numbers, runs backwards or begins behind the end.
    """
    cut = []
    for span in spans:
        if duration is not None and isinstance(span, list | tuple) and len(span) == 2:
            start, end = span
            span = [start, min(end, duration)] if isinstance(end, int | float) else span
        cut.append(span)
    return json_form.read({"spans": cut, **others}, Frame(duration=duration))
