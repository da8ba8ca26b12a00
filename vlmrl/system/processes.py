"""What a process is told by the one that started it, which it must not outlive.

Where the parent is killed nobody is left to end its children. A thread asks who the parent is, since the
main one may be stuck.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# --------------------------------------------------------------------------------------------------
# What a process may allocate, and what it keeps of what it frees; all of it on Linux alone.


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

        import psutil  # few processes are limited, all import this file

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        used = psutil.Process().memory_info().data
        resource.setrlimit(resource.RLIMIT_DATA, (used + size, hard))


@contextmanager
def memory_ceiling(size: int) -> Iterator[None]:
    """Make allocations of more than `size` bytes fail inside the block."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    limit_memory(size)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


# --------------------------------------------------------------------------------------------------
# Processes that end with their parent.


PARENT = "VLMRL_PARENT"
"""Environment variable: the process without which a rank must not live."""
TOKEN = "VLMRL_SERVER_TOKEN"
"""Environment variable: the secret that a server of ours asks for."""
LOOK_S = 0.3


def end_with(parent: int, last: Callable[[], None] | None = None) -> None:
    """From now on, kill this process when `parent` is no longer its parent; call `last` before."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_S)
        try:
            if last is not None:
                last()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def end_if_asked() -> None:
    """From now on, let this process and those that it starts live no longer than the one in `PARENT`."""

    def end_group() -> None:
        if os.getpgrp() == os.getpid():
            os.killpg(os.getpid(), signal.SIGKILL)

    if PARENT in os.environ:
        end_with(int(os.environ[PARENT]), end_group)
