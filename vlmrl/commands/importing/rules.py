"""What a rule of a table says about another trainer's setting: where it goes here, or why it goes nowhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Note", "Rule", "Rules", "chosen_trackers", "left", "to", "top_k", "with_keys"]


@dataclass(frozen=True)
class Note:
    """What became of a setting: our keys with their values, or none and the reason."""

    name: str
    keys: Mapping[str, Any]
    why: str = ""


TRACKERS = ("wandb", "swanlab", "mlflow", "trackio", "tensorboard")
"""Trackers that have the same name here."""
Rule = Callable[[Any], tuple[dict[str, Any], str]]
"""Returns our keys with their values, and a remark, for the value of a setting."""
Rules = Mapping[str, Rule]


def to(key: str, read: Callable[[Any], Any] = lambda value: value, why: str = "") -> Rule:
    """Return the rule of a setting that is one of our keys; a value that `read` makes None is left out."""

    def rule(value: Any) -> tuple[dict[str, Any], str]:
        found = read(value)
        if found is None:
            return {}, why or f"{value!r} has no counterpart"
        return {key: found}, why

    return rule


def left(why: str) -> Rule:
    """Return the rule of a setting that goes nowhere."""
    return lambda value: ({}, why)


def with_keys(keys: Mapping[str, Any], why: str = "") -> Rule:
    """Return the rule of a setting that means these keys where it is true."""
    return lambda value: (dict(keys), why) if value else ({}, "it is off")


def chosen_trackers(value: Any) -> dict[str, Any] | None:
    """Return our `tracking` for the trackers that another trainer names; None: we have none of them."""
    names = value if isinstance(value, list) else [value]
    return {name: True for name in names if name in TRACKERS} or None


def top_k(value: Any) -> int:
    """Return our `rollout.top_k`, where 0 and not -1 is no limit."""
    return max(0, int(value))
