"""One piece of work beside training."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from vlmrl.system import distributed

__all__ = ["Background"]


class Background:
    """A thread of each rank that does one piece of work at a time, while the main one goes on.

    It ends with the process, done or not. The threads of all ranks talk by `group`, so that nothing mixes
    with what the main ones say, and wait for each other for 30 minutes at most.
    """

    def __init__(self) -> None:
        self._group: Any = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    @property
    def group(self) -> Any:
        """The process group of the threads; None for one process. All ranks ask together the first time."""
        if distributed.world() > 1 and self._group is None:
            import torch.distributed as dist

            self._group = dist.new_group(backend="gloo")
        return self._group

    def start(self, work: Callable[[], None]) -> None:
        """Begin with `work`; nothing else may be under way."""
        assert self._thread is None, "finish was not called"
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait until the work is done, if there is any, and raise what it raised."""
        if self._thread is None:
            return
        self._thread.join()
        self._thread, failure, self._failure = None, self._failure, None
        if failure is not None:
            raise failure

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as failure:
            self._failure = failure
