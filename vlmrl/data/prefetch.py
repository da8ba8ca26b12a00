"""An iterator's items, made by a thread before they are asked for."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


class Prefetch(Iterator[T]):
    """The items of `items`, made by a thread from the first `next` on. `stop` it.

    Up to `count` items and about `max_bytes` (`size` tells those of an item) wait to be taken; one
    always may. What `items` raises, `next` raises in its place, after the items before it.
    """

    def __init__(
        self, items: Iterator[T], count: int, max_bytes: int, size: Callable[[T], int]
    ) -> None:
        self._items, self._count, self._max_bytes, self._size = items, count, max_bytes, size
        self._waiting: deque[tuple[T, int]] = deque()
        self._held = 0
        self._error: BaseException | None = None
        self._stopped = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def __next__(self) -> T:
        if self._thread is None:
            self._thread = _started(self._run)
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._error)
            if not self._waiting:
                assert self._error is not None
                raise self._error
            item, size = self._waiting.popleft()
            self._held -= size
            self._changed.notify_all()
            return item

    def stop(self, interrupt: Callable[[], None]) -> None:
        """End the thread and drop what it made; `interrupt` ends what it may be waiting for."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        while self._thread is not None and self._thread.is_alive():
            interrupt()  # again and again: it may only be about to wait
            self._thread.join(0.1)
        self._waiting.clear()

    def _run(self) -> None:
        try:
            for item in self._items:
                if not self._handed(item, self._size(item)):
                    return
            self._fail(StopIteration())
        except BaseException as error:  # raised again by whoever wants the next item
            self._fail(error)

    def _handed(self, item: T, size: int) -> bool:
        """Put an item with those that wait; True once there is room for another, False if stopped."""
        with self._changed:
            self._waiting.append((item, size))
            self._held += size
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._stopped or self._has_room())
            return not self._stopped

    def _has_room(self) -> bool:
        full = len(self._waiting) >= self._count or self._held >= self._max_bytes
        return not (self._waiting and full)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()


def _started(run: Callable[[], None]) -> threading.Thread:
    """Start a thread that runs `run`, with one torch thread for itself.

    An item's tensors are small; to share one out over threads that the trainer keeps busy takes far
    longer than the work itself.
    """
    import torch

    ready = threading.Event()

    def main() -> None:
        torch.get_num_threads()  # a thread's first look at the number would undo the next line
        torch.set_num_threads(1)  # of this thread, and of those that have not looked yet
        ready.set()
        run()

    threads = torch.get_num_threads()
    thread = threading.Thread(target=main, name="loader", daemon=True)
    thread.start()
    ready.wait()
    torch.set_num_threads(threads)  # for those others; the new thread keeps its one
    return thread
