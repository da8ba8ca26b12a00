"""Of which kind a part is, by its name or by its base class."""

from __future__ import annotations

import itertools

from vlmrl import plugins
from vlmrl.algorithms.recipes import Recipe
from vlmrl.benchmarking.base import Benchmark
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
from vlmrl.truths.base import TruthKind

BASES = {
    "verifier": Verifier,
    "card": Card,
    "layout": Layout,
    "benchmark": Benchmark,
    "truth": TruthKind,
    "family": Family,
    "engine": Engine,
    "algorithm": Recipe,
    "tracker": Tracker,
    "sampler": Sampler,
    "strategy": Strategy,
    "tool": Tool,
    "environment": Environment,
}
"""The kinds that have contract tests, each with the class from which its parts derive."""
BY_NAME = ("truth", "family")
"""Kinds that no key of a config names: a part of theirs is known by the name of its file alone."""


def kinds_of(part: str) -> list[str]:
    """Return the kinds of a part: all that have one of this name, or that of the base of a file's class.

    Raises:
        UserError: there is no such part, or it derives from none of the bases.
    """
    if ":" not in part:
        names = {kind: plugins.names(kind) for kind in BASES}
        kinds = [kind for kind, known in names.items() if part in known]
        if not kinds:
            near = plugins.nearest(part, sorted({*itertools.chain(*names.values())}), listed=False)
            raise UserError(
                f"no part is named {part!r}{near}; path/to/file.py:Name is one of yours"
            )
        return kinds
    cls = plugins.load("part", part)
    for kind, base in BASES.items():
        if isinstance(cls, type) and issubclass(cls, base):
            return [kind]
    bases = ", ".join(f"{base.__name__} ({kind})" for kind, base in BASES.items())
    raise UserError(f"{part}: expected a subclass of one of {bases}, got {cls!r}")
