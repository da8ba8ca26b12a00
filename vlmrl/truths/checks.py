"""Checks of what a row states, shared by the kinds of truth: each raises "expected X, got Y"."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def check_list(value: Any) -> list[Any]:
    """Return a list or tuple as a list."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"expected a list, got {value!r:.80}")
    return list(value)


def check_text(value: Any) -> str:
    """Return a text that is not blank."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"expected a text, got {value!r:.80}")
    return value


def check_texts(value: Any) -> tuple[str, ...]:
    """Return a list of texts."""
    return tuple(map(check_text, check_list(value)))


def check_number(value: Any) -> float:
    """Return a finite number; a bool is none."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        raise ValueError(f"expected a finite number, got {value!r:.80}")
    return float(value)


def check_object(value: Any) -> dict[str, Any]:
    """Return an object that is not empty."""
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f"expected an object, got {value!r:.80}")
    return dict(value)


def check_label(value: Any) -> str | None:
    """Return the label of an item, None if it has none."""
    label = value.get("label") if isinstance(value, Mapping) else None
    return None if label is None else check_text(label)


def check_numbers(value: Any, key: str, count: int) -> list[float]:
    """Return the `count` finite numbers of `{key: [...]}` or of a bare list."""
    numbers = value.get(key) if isinstance(value, Mapping) else value
    if not isinstance(numbers, list | tuple) or len(numbers) != count:
        raise ValueError(f"expected {count} numbers for a {key}, got {numbers!r:.80}")
    return [check_number(n) for n in numbers]
