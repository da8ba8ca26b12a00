"""Packages that not everybody needs: each comes with an extra of vlmrl, and its absence is one line."""

from __future__ import annotations

import importlib
from types import ModuleType

from vlmrl.errors import MissingExtra


def import_extra(module: str, extra: str) -> ModuleType:
    """Import a module of a package that `pip install 'vlmrl[extra]'` installs.

    Raises:
        MissingExtra: the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise MissingExtra(
            f"the package {error.name!r} is not installed: pip install 'vlmrl[{extra}]'"
        ) from error
