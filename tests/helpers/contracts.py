"""What the contract tests of all kinds of part share."""

from __future__ import annotations

from typing import Any

import pytest

from vlmrl import plugins
from vlmrl.algorithms.recipes import Recipe
from vlmrl.data.card import Card
from vlmrl.data.layout import Layout
from vlmrl.data.sampler import Sampler
from vlmrl.engines.base import Engine
from vlmrl.errors import UserError
from vlmrl.interaction.environment import Environment
from vlmrl.interaction.tool import Tool
from vlmrl.models.base import Family
from vlmrl.runs.tracker import Tracker
from vlmrl.scoring.verifier import Verifier
from vlmrl.training.strategy import Strategy

BASES = {
    "verifier": Verifier,
    "card": Card,
    "layout": Layout,
    "family": Family,
    "engine": Engine,
    "algorithm": Recipe,
    "tracker": Tracker,
    "sampler": Sampler,
    "strategy": Strategy,
    "tool": Tool,
    "environment": Environment,
}


def kinds_of(part: str) -> list[str]:
    """The kinds of a part named by `--part`: all with a shipped part of this name, or its base's."""
    if ":" not in part:
        kinds = [kind for kind in plugins.KINDS if part in plugins.names(kind)]
        if not kinds:
            raise pytest.UsageError(
                f"--part {part}: no shipped part has this name; FILE.py:NAME is yours"
            )
        return kinds
    try:
        cls = plugins.load("part", part)
    except UserError as error:
        raise pytest.UsageError(f"--part {part}: {error}") from None
    for kind, base in BASES.items():
        if isinstance(cls, type) and issubclass(cls, base):
            return [kind]
    bases = ", ".join(f"{base.__name__} ({kind})" for kind, base in BASES.items())
    raise pytest.UsageError(f"--part {part}: expected a subclass of one of {bases}, got {cls!r}")


def require(condition: Any, part: str, sentence: str) -> None:
    """Fail with one sentence that says what to write."""
    if not condition:
        pytest.fail(f"{part}: {sentence}", pytrace=False)
