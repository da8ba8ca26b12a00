"""A turn of a demonstration that calls a tool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["DemoTurn"]


@dataclass(frozen=True, slots=True)
class DemoTurn:
    """A call before the answer of a demonstration. What the tool returns is no part of it: it is run.

    Example: DemoTurn("crop", {"bbox_2d": Box(.1, .1, .5, .5)}, thought="top left")
    """

    name: str
    """Function of a tool of the source."""
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """A JSON object in which a Box and a Point, in the unit square of the image that the argument
    `image` names (1 if there is none), and a Span, in seconds, stand for themselves."""
    thought: str = ""
    """What is thought before the call; empty: nothing is written of it."""
