"""Which of many cases are tested every day; the others are `make nightly`'s."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def marked(cases: Iterable[object], daily: Collection[object]) -> list[Any]:
    """The cases as parameters of a test, of which those that are not daily are nightly."""
    return [pytest.param(c, marks=() if c in daily else pytest.mark.nightly) for c in cases]


def due(request: pytest.FixtureRequest, cases: Iterable[str], daily: Iterable[str]) -> list[str]:
    """The cases that this run of the tests asks for."""
    return list(cases if request.config.getoption("--nightly") else daily)
