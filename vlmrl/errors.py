"""What the user can fix, what a run has lost, what is not installed; exit codes of the command line."""

from __future__ import annotations

import contextlib
import errno
import importlib
from collections.abc import Iterator
from types import ModuleType

from vlmrl import DISTRIBUTION

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


class DiskError(OSError):
    """The disk or the system cannot read files: not the fault of one row, so the run ends."""


class NotFinite(UserError):
    """A NaN or an infinity in weights, logits or rewards; the message names what is not finite."""


class NothingScored(UserError):
    """An evaluation without any value of its metric; every rank raises it together."""


def import_extra(module: str, extra: str) -> ModuleType:
    """Import a module of a package that `pip install 'vlmrl-perception[extra]'` installs.

    Raises:
        MissingExtra: the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise MissingExtra(
            f"the package {error.name!r} is not installed: pip install '{DISTRIBUTION}[{extra}]'"
        ) from error


SYSTEM_FAULTS = frozenset(
    getattr(errno, name)
    for name in "EIO EMFILE ENFILE ENOMEM ESTALE ENOTCONN ENODEV ENXIO EREMOTEIO".split()
    if hasattr(errno, name)
)
"""What a disk or a system at fault may say; whether it is at fault, only a trial tells."""
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
MAX_REASON = 1000
"""Characters of an error over a row; its values may be of any length."""


@contextlib.contextmanager
def about_row(what: str) -> Iterator[None]:
    """Make whatever is raised within a UserError that begins with `what`: a row's fault ends no run.

    Raises:
        UserError: something went wrong over the row.
        DiskError, OSError, MemoryError, MissingExtra: it is the disk's or the machine's fault.
    """
    try:
        yield
    except (UserError, DiskError, MemoryError, MissingExtra):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (*SYSTEM_FAULTS, *FULL_DISK):
            raise
        raise UserError(f"{what}: {type(error).__name__}: {shortened(str(error))}") from error


def shortened(text: str, most: int = MAX_REASON) -> str:
    """Return a text without its middle, where it has more than `most` characters."""
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"
