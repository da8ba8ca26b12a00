"""Disks that are full."""

from __future__ import annotations

import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def report_free(patch: pytest.MonkeyPatch, free: Callable[[], int]) -> None:
    """Let every disk say that it has `free()` bytes left."""
    real = shutil.disk_usage

    def usage(path: Any) -> Any:
        return real(path)._replace(free=free())

    patch.setattr(shutil, "disk_usage", usage)
