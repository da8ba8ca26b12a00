"""Read the calls of tools that a policy wrote, in the form that Qwen and Hermes models were taught.

    <tool_call>{"name": "crop", "arguments": {"bbox_2d": [0, 0, 28, 28]}}</tool_call>

A call that cannot be read is no fault: it becomes an observation that says what was expected.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

__all__ = ["CLOSE", "OPEN", "AskedCall", "parse_calls"]

OPEN, CLOSE, THOUGHT_END = "<tool_call>", "</tool_call>", "</think>"
FORM = '{"name": ..., "arguments": {...}}'
MAX_CHARS = 20_000
"""Characters that one call may have."""
MAX_CALLS = 64
"""Calls that one turn may hold; the rest are refused as one."""


@dataclass(frozen=True, slots=True)
class AskedCall:
    """A call as the policy wrote it: places are in its own space."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    problem: str = ""
    """Why it cannot be read, in a sentence for the policy; empty: it can."""


def parse_calls(text: str) -> tuple[AskedCall, ...]:
    """Return the calls in a policy's turn, in order; those in its thought are thoughts.

    `text` is what the policy wrote, never an observation.
    """
    said = text.rpartition(THOUGHT_END)[2]
    blocks = said.split(OPEN)[1:]
    if len(blocks) > MAX_CALLS:
        return (AskedCall("", problem=f"expected at most {MAX_CALLS} calls, got {len(blocks)}"),)
    return tuple(_read(block) for block in blocks)


def _read(block: str) -> AskedCall:
    inside, closed, _ = block.partition(CLOSE)
    if not closed:
        return AskedCall("", problem=f"expected {CLOSE} at the end of a call")
    if len(inside) > MAX_CHARS:
        return AskedCall("", problem=f"expected a call of at most {MAX_CHARS} characters")
    try:
        value = json.loads(inside, parse_constant=_refuse_constant, parse_float=_finite)
        json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except (ValueError, RecursionError):
        return AskedCall("", problem=f"expected a call in JSON, {FORM}")
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return AskedCall("", problem=f"expected a call {FORM}")
    name, arguments = value.pop("name")[:80], value.pop("arguments", {})
    if value:
        return AskedCall(
            name, problem=f"expected a call {FORM}, got the key {next(iter(value))!r:.60} too"
        )
    if not isinstance(arguments, dict):
        return AskedCall(name, problem=f"arguments: expected an object, got {arguments!r:.60}")
    return AskedCall(name, arguments)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _finite(digits: str) -> float:
    if not math.isfinite(number := float(digits)):
        raise ValueError(f"{digits:.60} is too large")
    return number
