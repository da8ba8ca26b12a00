"""Every contract test holds for each part of its module's `KIND`: all shipped ones, or those of `--part`.

A test takes `part` (the name as a config writes it) and `loaded` (the class it names); a module may
name subsets of the parts in `SUBSETS`, fixture -> which classes it takes. A test is one item, which
loops over the parts and names those that fail. In a module with `APART = True`, whose fixtures are
made anew for each part, it is one item per part.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings

from vlmrl import plugins
from vlmrl.errors import UserError
from vlmrl.features.parts.kinds import BY_NAME, kinds_of
from vlmrl.system import torchvision_shim  # noqa: F401

settings.register_profile("contract", deadline=None, max_examples=20)


class Parts(tuple[str, ...]):
    """The names of the parts over which a test loops."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Here, so that tests of no contract do not take the option; `vlmrl test-part` runs this folder alone."""
    parser.addoption(
        "--part",
        action="append",
        default=[],
        metavar="NAME or FILE.py:NAME",
        help="check these parts alone, shipped ones or your own; repeatable",
    )


def pytest_configure(config: pytest.Config) -> None:
    for mark in ("slow", "nightly"):
        config.addinivalue_line("markers", f"{mark}: see pyproject.toml of the checkout")
    for part in config.getoption("--part", default=[]):
        try:
            (kind, *_) = kinds_of(part)
        except UserError as error:
            raise pytest.UsageError(f"--part {part}: {error}") from None
        if ":" in part and kind in BY_NAME:
            raise pytest.UsageError(f"--part {part}: a {kind} of a file needs `vlmrl test-part`")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    kind = getattr(metafunc.module, "KIND", None)
    if kind is None:
        return
    asked = tuple(metafunc.config.getoption("--part", default=[]))
    for fixture, chosen in getattr(metafunc.module, "SUBSETS", {"part": _every}).items():
        if fixture in metafunc.fixturenames:
            names = _chosen(kind, chosen, asked)
            if getattr(metafunc.module, "APART", False) or not names:
                metafunc.parametrize(fixture, names, scope="module")
            else:
                metafunc.parametrize(fixture, [Parts(names)], ids=["every part"], scope="module")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Call a test once for each part, whose name the report of a failure has."""
    looped = [name for name, value in pyfuncitem.funcargs.items() if isinstance(value, Parts)]
    if not looped:
        return None
    subtests = pyfuncitem._request.getfixturevalue("subtests")
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    for part in pyfuncitem.funcargs[looped[0]]:
        with subtests.test(part):
            if "loaded" in arguments:
                arguments["loaded"] = _load(pyfuncitem.module.KIND, part)
            pyfuncitem.obj(**{**arguments, looped[0]: part})
    return True


def _every(cls: Any) -> bool:
    return True


@functools.cache
def _chosen(kind: str, chosen: Callable[[Any], Any], asked: tuple[str, ...]) -> list[str]:
    """Return the parts of a kind that a subset holds, of those that were asked for."""
    names = [part for part in asked if kind in kinds_of(part)] if asked else plugins.names(kind)
    return [name for name in names if _is_chosen(kind, name, chosen)]


def _is_chosen(kind: str, name: str, chosen: Callable[[Any], Any]) -> bool:
    """Whether a subset holds a part; one that cannot be loaded is in all, so that its tests say why."""
    try:
        return bool(chosen(_load(kind, name)))
    except Exception:
        return True


@functools.cache
def _load(kind: str, name: str) -> Any:
    """Return a part; `plugins.load` reads the whole room each time."""
    return plugins.load(kind, name)


@pytest.fixture(scope="module")
def loaded(request: pytest.FixtureRequest, part: str | Parts) -> Any:
    return None if isinstance(part, Parts) else _load(request.module.KIND, part)
