"""Run VLMEvalKit's `run.py` of a checkout, whatever packages of its models and judges are not installed.

    python tests/reference/run_vlmevalkit.py CHECKOUT ARGUMENTS...

It imports all its models and data sets at once. What is not installed is replaced by empty modules, for
imports of its own files only: scoring a finished prediction needs none of it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import runpy
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import vlmrl.models.loading  # noqa: F401  # some builds of torch and torchvision need its shim


class _Empty(type):
    """The type of a name of a package that is not installed: its attributes are alike."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent

    def __iter__(cls) -> Iterator[Any]:
        return iter(())


class Absent(metaclass=_Empty):
    """What such a name stands for: a base class, a decorator that changes nothing, or a false value."""

    def __new__(cls, *given: Any, **named: Any) -> Any:
        return given[0] if len(given) == 1 and callable(given[0]) else super().__new__(cls)

    def __init__(self, *given: Any, **named: Any) -> None:
        """Take anything."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        return given[0] if given and callable(given[0]) else self

    def __bool__(self) -> bool:
        return False


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds an empty module where a file of the checkout imports what is not installed."""

    def __init__(self, checkout: str) -> None:
        self.checkout = checkout

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a module that is empty, or nothing where the import is not the checkout's."""
        top = name.partition(".")[0]
        inside = isinstance(sys.modules.get(top), _Module)
        frame = sys._getframe(1)
        while frame.f_back and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        if top == "vlmeval" or not (inside or self.checkout in frame.f_code.co_filename):
            return None
        if top in sys.modules and not inside:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Return an empty module."""
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Run nothing."""


class _Module(types.ModuleType):
    """A module that is not installed."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent


if __name__ == "__main__":
    if importlib.util.find_spec("tabulate") is None:  # it prints its last table with it
        spec = importlib.machinery.ModuleSpec("tabulate", None)
        sys.modules["tabulate"] = importlib.util.module_from_spec(spec)
        sys.modules["tabulate"].tabulate = lambda rows, **how: str(rows)  # type: ignore[attr-defined]
    folder = str(Path(sys.argv[1]).resolve())
    sys.meta_path.append(_Finder(folder))
    sys.path.insert(0, folder)
    sys.argv = ["run.py", *sys.argv[2:]]
    runpy.run_path(f"{folder}/run.py", run_name="__main__")
