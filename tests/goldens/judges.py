"""Judges that know the truth: verifiers that ask one are given these by name."""

from __future__ import annotations

import json
from typing import Any


def grade(messages: Any) -> str:
    """Pay ten points for an accepted text."""
    data = json.loads(messages[1]["content"])
    return json.dumps({"score": 10 * (data["candidate"] in data["truth"].get("text", []))})


def grade_all(messages: Any) -> str:
    """Pay each of several candidates five points for an accepted text, else one."""
    data = json.loads(messages[1]["content"])
    right = data["truth"].get("text", [])
    return json.dumps({n: 5 if text in right else 1 for n, text in data["candidates"].items()})


def prefer(messages: Any) -> str:
    """Prefer the accepted one of two texts."""
    data = json.loads(messages[1]["content"])
    first, second = (data[place] in data["truth"].get("text", []) for place in ("first", "second"))
    return json.dumps({"better": "tie" if first == second else "first" if first else "second"})
