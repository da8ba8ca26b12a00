"""Every contract test runs once per part of its module's `KIND`: all shipped ones, and `--part`s.

A test takes `part` (the name as a config writes it) and `loaded` (the class it names); a module may
name subsets of the parts in `SUBSETS`, fixture -> which classes it takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from helpers.contracts import kind_of
from vlmrl import plugins


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    kind = getattr(metafunc.module, "KIND", None)
    if kind is None:
        return
    given = [part for part in metafunc.config.getoption("--part") if kind_of(part) == kind]
    names = [*plugins.names(kind), *given]
    subsets = getattr(metafunc.module, "SUBSETS", {"part": lambda cls: True})
    for fixture, chosen in subsets.items():
        if fixture in metafunc.fixturenames:
            parts = [name for name in names if _is_chosen(kind, name, chosen)]
            metafunc.parametrize(fixture, parts, scope="module")


def _is_chosen(kind: str, name: str, chosen: Callable[[Any], Any]) -> bool:
    """Whether a subset holds a part; one that cannot be loaded is in all, so that its tests say why."""
    try:
        return bool(chosen(plugins.load(kind, name)))
    except Exception:
        return True


@pytest.fixture(scope="module")
def loaded(request: pytest.FixtureRequest, part: str) -> Any:
    return plugins.load(request.module.KIND, part)
