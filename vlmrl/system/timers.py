"""Wall and CPU seconds per phase of a run, and seconds in which nothing was done."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping

__all__ = ["IdleMeter", "PhaseTimers"]


class PhaseTimers:
    """Adds up the seconds of named phases. Example: `with timers("generate"): ...`."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = defaultdict(float)
        self.cpu: dict[str, float] = defaultdict(float)
        self._lap: dict[str, float] = defaultdict(float)

    @contextlib.contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Time a block as part of a phase."""
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            spent = time.perf_counter() - wall
            self.wall[phase] += spent
            self._lap[phase] += spent
            self.cpu[phase] += time.process_time() - cpu

    @property
    def state(self) -> dict[str, dict[str, float]]:
        """Return the seconds so far, for a checkpoint."""
        return {"wall": dict(self.wall), "cpu": dict(self.cpu)}

    def restore(self, state: Mapping[str, Mapping[str, float]]) -> None:
        """Add the seconds of an earlier start of the run."""
        for mine, earlier in ((self.wall, state["wall"]), (self.cpu, state["cpu"])):
            for phase, seconds in earlier.items():
                mine[phase] += seconds

    def lap(self) -> dict[str, float]:
        """Return the wall seconds per phase since the last lap and start a new one."""
        lap, self._lap = dict(self._lap), defaultdict(float)
        return lap


class IdleMeter:
    """Seconds in which no thread was inside `with meter:`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside, self._idle = 0, 0.0
        self._begin = self._since = time.monotonic()

    def __enter__(self) -> None:
        with self._lock:
            self._advance()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._advance()
            self._inside -= 1

    def lap(self) -> tuple[float, float]:
        """Return idle seconds and all seconds since the last lap."""
        with self._lock:
            self._advance()
            found = self._idle, max(self._since - self._begin, 1e-9)
            self._idle, self._begin = 0.0, self._since
            return found

    def _advance(self) -> None:
        now = time.monotonic()
        if not self._inside:
            self._idle += now - self._since
        self._since = now
