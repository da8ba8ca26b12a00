"""Type hints of a call become its JSON schema, and a policy's arguments become values of those types.

A place (`Box`, `Point`, `Span`) is written in the space of the image or video that it refers to, and
a tool gets it in the unit square of that image, or in seconds: it never sees the model's numbers.
"""

from __future__ import annotations

import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from vlmrl.answers import geometry
from vlmrl.errors import UserError
from vlmrl.schema import Box, Frame, MediaKind, Point, Space, Span
from vlmrl.tools.views import Refused
from vlmrl.truths.base import PLACES

__all__ = ["parameters", "schema", "to_values"]

MAX_ITEMS = 256
"""Items that a list of arguments may have."""
MAX_CHARS = 20_000
"""Characters that a text may have."""
PLAIN = {int: "integer", float: "number", str: "string", bool: "boolean"}
PLACED = {Box: "[x1, y1, x2, y2]", Point: "[x, y]", Span: "[start, end], in seconds"}
FrameOf = Callable[[MediaKind, int], Frame]


def parameters(function: Callable[..., Any]) -> dict[str, tuple[Any, bool]]:
    """Return what a policy may pass, by name: its type, and whether it is required.

    The first argument (the view of a tool, the state of an environment) is ours.

    Raises:
        UserError: a parameter has no type hint.
    """
    found = {}
    hints = typing.get_type_hints(function, include_extras=True)
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        if parameter.name not in hints:
            raise UserError(
                f"{function.__qualname__}: parameter {parameter.name!r} has no type hint"
            )
        found[parameter.name] = (hints[parameter.name], parameter.default is parameter.empty)
    return found


def schema(
    function: Callable[..., Any], name: str, description: str, space: Space
) -> dict[str, Any]:
    """Return a function in OpenAI's form: `{"type": "function", "function": {name, ...}}`."""
    known = parameters(function)
    body = {
        "type": "object",
        "properties": {key: _type_schema(hint, space) for key, (hint, _) in known.items()},
        "required": [key for key, (_, required) in known.items() if required],
    }
    told = {"name": name, "description": description, "parameters": body}
    return {"type": "function", "function": told}


def to_values(
    function: Callable[..., Any], arguments: Mapping[str, Any], frame_of: FrameOf
) -> dict[str, Any]:
    """Return a policy's arguments as the types that a function wants.

    Raises:
        Refused: one is missing, unknown or of another type; the sentence says which.
    """
    known = parameters(function)
    for key in arguments:
        if key not in known:
            raise Refused(
                f"there is no argument {key!r:.60}: expected {', '.join(known) or 'none'}"
            )
    if missing := [
        key for key, (_, required) in known.items() if required and key not in arguments
    ]:
        raise Refused(f"the argument {missing[0]!r} is missing")
    plain = {key: hint for key, (hint, _) in known.items()}

    def frame(kind: MediaKind) -> Frame:
        number = _convert(kind, int, arguments.get(kind, 1), frame)
        return frame_of(kind, number)

    def timed(kind: MediaKind) -> Frame:
        if kind != "video" or "audio" not in known:
            return frame(kind)
        number = _convert("audio", int, arguments.get("audio", 1), frame)
        try:
            return frame_of("audio", number)
        except Refused:  # the sound of a video
            return frame_of("video", number)

    return {key: _convert(key, plain[key], value, timed) for key, value in arguments.items()}


def _type_schema(hint: Any, space: Space) -> dict[str, Any]:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        told = _type_schema(inner[0], space)
        return {
            **told,
            "description": ", ".join([inner[1], *filter(None, [told.get("description")])]),
        }
    if hint in PLAIN:
        return {"type": PLAIN[hint]}
    if hint in PLACED:
        count = 4 if hint is Box else 2
        unit = "" if hint is Span else f" {PLACES[space]}"
        numbers = {"type": "array", "items": {"type": "number"}}
        return {**numbers, "minItems": count, "maxItems": count, "description": PLACED[hint] + unit}
    if origin is Literal:
        return {"type": PLAIN[type(inner[0])], "enum": list(inner)}
    if origin in (list, tuple, Sequence):
        return {"type": "array", "items": _type_schema(inner[0], space), "maxItems": MAX_ITEMS}
    if origin in (typing.Union, types.UnionType):
        return _type_schema(next(one for one in inner if one is not type(None)), space)
    raise UserError(f"expected a type that JSON can state, got {hint!r}")


def _convert(key: str, hint: Any, value: Any, frame: Callable[[MediaKind], Frame]) -> Any:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _convert(key, inner[0], value, frame)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in inner:
            return None
        return _convert(key, next(i for i in inner if i is not type(None)), value, frame)
    if hint in PLACED:
        return _place(key, hint, value, frame)
    if origin is Literal:
        if value not in inner:
            raise Refused(f"{key}: expected {' or '.join(map(str, inner))}, got {value!r:.60}")
        return value
    if origin in (list, tuple, Sequence):
        if not isinstance(value, list) or len(value) > MAX_ITEMS:
            raise Refused(f"{key}: expected a list of at most {MAX_ITEMS}, got {value!r:.60}")
        return [_convert(key, inner[0], one, frame) for one in value]
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < 1e15 else math.inf
    if type(value) is not hint or (hint is float and not math.isfinite(value)):
        raise Refused(f"{key}: expected {_article(PLAIN[hint])}, got {value!r:.60}")
    if hint is str and len(value) > MAX_CHARS:
        raise Refused(f"{key}: expected at most {MAX_CHARS} characters, got {len(value)}")
    return value


def _place(key: str, hint: Any, value: Any, frame: Callable[[MediaKind], Frame]) -> Any:
    count = 4 if hint is Box else 2
    if not isinstance(value, list) or len(value) != count or not all(map(_is_number, value)):
        raise Refused(f"{key}: expected {PLACED[hint]}, got {value!r:.60}")
    numbers = [float(number) for number in value]
    if hint is Box:
        found: Box | Point | Span | None = geometry.box(numbers, frame("image"))
    elif hint is Point:
        found = geometry.point(numbers[0], numbers[1], frame("image"))
    else:
        found = geometry.span(numbers[0], numbers[1], frame("video"))
    if found is None:
        what = "time" if hint is Span else "image"
        raise Refused(f"{key}: expected {PLACED[hint]} inside the {what}, got {value!r:.60}")
    return found


def _is_number(value: Any) -> bool:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return plain and abs(value) < 1e15 and math.isfinite(value)


def _article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"
