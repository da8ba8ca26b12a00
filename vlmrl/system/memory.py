"""What a process may allocate, and what it keeps of what it frees; all of it on Linux alone."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

__all__ = ["keep_freed_memory", "limit_memory", "memory_ceiling"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's `mallopt`."""
KEPT = 2**29
"""Freed bytes at the end of the heap that are kept."""
LARGEST = 2**25
"""Bytes of the largest block that is on the heap; glibc takes no more."""


def keep_freed_memory() -> None:
    """Keep up to `KEPT` bytes that are freed for what is allocated next; without glibc do nothing.

    By itself glibc returns the activations of a step to the system, and in the next step every page of
    them is asked for and zeroed again.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_MMAP_THRESHOLD, LARGEST)
        libc.mallopt(_TRIM_THRESHOLD, KEPT)


def limit_memory(size: int) -> None:
    """Make allocations of more than `size` bytes from now on fail, for the rest of the process."""
    if sys.platform == "linux":
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        used = psutil.Process().memory_info().data
        resource.setrlimit(resource.RLIMIT_DATA, (used + size, hard))


@contextmanager
def memory_ceiling(size: int) -> Iterator[None]:
    """Make allocations of more than `size` bytes fail inside the block."""
    if sys.platform != "linux":
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    limit_memory(size)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
