"""Ctrl-C and SIGTERM ask the loop to stop after the step in hand, save, and exit."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from vlmrl.system import distributed


class Interrupt:
    """`with Interrupt() as interrupt:` then look at `interrupt.asked` between steps.

    The second signal stops at once, as Python does without us; but a launcher (`torchrun`) repeats every
    signal to its processes, and ends them itself if they take too long. It also sends one to the others
    when a process fails: signals stay caught after an error, while all is closed and said. Outside the
    main thread signals cannot be caught, and nothing changes.
    """

    def __init__(self) -> None:
        self._signalled = False
        self.when: Callable[[], bool] = lambda: False
        """What else asks the loop to stop."""

    @property
    def asked(self) -> bool:
        """Return whether the loop is to stop after the step in hand."""
        return self._signalled or self.when()

    def __enter__(self) -> Interrupt:
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and distributed.launched():
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._signalled and not distributed.launched():
            raise KeyboardInterrupt
        self._signalled = True
