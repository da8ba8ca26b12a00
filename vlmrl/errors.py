"""What the user can fix, what a run has lost, what is not installed; exit codes of the command line."""

from __future__ import annotations

import importlib
from types import ModuleType

# Exit codes of the command line; 0 is success.
FAILED = 1
"""A check says no, or vlmrl itself failed."""
MISTAKE = 2
"""A mistake of the user's: arguments, config or data."""
INTERRUPTED = 130
"""Ctrl-C; a run has been saved."""


class UserError(Exception):
    """A mistake in a config, a data file or a command.

    The message names the file, row and key, says what was found, and what is allowed.
    """


class LostRank(Exception):
    """Another process of the run has ended or cannot be reached; the message says which.

    No `UserError`, because the same run may go on from its last checkpoint.
    """


class LostEngine(Exception):
    """What generates has failed, and cannot be started again within a step; the message says why.

    No `UserError`, for the same reason as `LostRank`.
    """


class MissingExtra(Exception):
    """An optional package that is not installed; the message says how to get it.

    No `UserError`, because it is about no row: a row that needs the package is not bad.
    """


class MediaError(UserError):
    """An image, video or audio that cannot be read; the message names the file and the reason."""


class NotFinite(UserError):
    """A NaN or an infinity in weights, logits or rewards; the message names what is not finite."""


class NothingScored(UserError):
    """An evaluation without any value of its metric; every rank raises it together."""


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
