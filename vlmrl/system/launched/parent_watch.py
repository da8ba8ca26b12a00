"""What a process is told by the one that started it, which it must not outlive.

Where the parent is killed nobody is left to end its children. A thread asks who the parent is, since the
main one may be stuck.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

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
    if PARENT in os.environ:
        end_with(int(os.environ[PARENT]), _end_group)


def _end_group() -> None:
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
