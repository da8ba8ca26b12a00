"""A ceiling on what a process may allocate; a system that has none (all but Linux) goes without."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

__all__ = ["limit_memory", "memory_ceiling"]


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
