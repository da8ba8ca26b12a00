"""Wall and CPU seconds per phase of a run."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping

__all__ = ["PhaseTimers"]


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
