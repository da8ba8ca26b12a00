"""Wall and CPU seconds per phase of a run, and seconds in which nothing was done, or others waited for."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


class Meetings(threading.local):
    """What this thread spent where ranks meet: `with MEETINGS:` around each call that waits for others."""

    waited_s = 0.0
    """Seconds inside, nearly all of them until the last rank came: what is exchanged there is small."""
    told_bytes = 0
    """Bytes that all ranks together told every rank."""
    _begin = 0.0

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.waited_s += time.perf_counter() - self._begin


MEETINGS = Meetings()


@dataclass(frozen=True, slots=True)
class Lap:
    """Wall seconds since the last lap: by phase, those of them in meetings of the ranks, and in all."""

    wall: Mapping[str, float]
    waited: Mapping[str, float]
    whole_s: float
    waited_s: float
    """In meetings, in any phase or in none."""
    told_bytes: int
    """See `Meetings`."""


class PhaseTimers:
    """Adds up the seconds of named phases. Example: `with timers("generate"): ...`."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = defaultdict(float)
        self.cpu: dict[str, float] = defaultdict(float)
        self._lap: dict[str, float] = defaultdict(float)
        self._waited: dict[str, float] = defaultdict(float)
        self._begin = self._marks()

    @contextlib.contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Time a block as part of a phase."""
        wall, cpu, waited = time.perf_counter(), time.process_time(), MEETINGS.waited_s
        try:
            yield
        finally:
            self._waited[phase] += MEETINGS.waited_s - waited
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

    def lap(self) -> Lap:
        """Return what passed since the last lap, or since this object was made, and start a new one."""
        before, self._begin = self._begin, self._marks()
        wall, self._lap = dict(self._lap), defaultdict(float)
        waited, self._waited = dict(self._waited), defaultdict(float)
        (begin, waited_s, told_bytes), (end, waited_s_now, told_now) = before, self._begin
        return Lap(wall, waited, end - begin, waited_s_now - waited_s, told_now - told_bytes)

    @staticmethod
    def _marks() -> tuple[float, float, int]:
        return time.perf_counter(), MEETINGS.waited_s, MEETINGS.told_bytes


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
            lap = self._idle, max(self._since - self._begin, 1e-9)
            self._idle, self._begin = 0.0, self._since
            return lap

    def _advance(self) -> None:
        now = time.monotonic()
        if not self._inside:
            self._idle += now - self._since
        self._since = now
