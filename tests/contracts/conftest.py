"""Every contract test runs once per part of its module's `KIND`: all shipped ones, and `--part`s.

A test takes `part` (the name as a config writes it) and `loaded` (the class it names).
"""

from __future__ import annotations

from typing import Any

import pytest

from helpers.contracts import kind_of
from vlmrl import plugins


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    kind = getattr(metafunc.module, "KIND", None)
    if kind is None or not {"part", "loaded"} & set(metafunc.fixturenames):
        return
    given = [part for part in metafunc.config.getoption("--part") if kind_of(part) == kind]
    metafunc.parametrize("part", [*plugins.names(kind), *given], scope="module")


@pytest.fixture(scope="module")
def loaded(request: pytest.FixtureRequest, part: str) -> Any:
    return plugins.load(request.module.KIND, part)
