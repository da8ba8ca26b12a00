"""Rewards of short runs. Workers that grade import this file, so it imports nothing that takes time."""

from typing import Any


def varied(completion: Any) -> float:
    """A reward in [0, 1) that hardly any two completions have in common."""
    return sum(completion.token_ids) % 997 / 997


def sparse(completion: Any) -> float:
    """A reward that often is the same for a whole group."""
    return float(sum(completion.token_ids) % 5 == 0)
