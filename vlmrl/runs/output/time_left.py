"""How long a run will still take: the median of its last steps, and what it has planned besides."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping

from vlmrl.runs.console import step_seconds

__all__ = ["TimeLeft"]

STEPS = 20
"""Last steps whose median is taken: one slow step does not count, and a change is seen soon."""
BESIDES = 5
"""Last evaluations and checkpoints whose median is taken."""


class TimeLeft:
    """Estimates the seconds that a run has left, from its steps as they come.

    `every` says after how many steps each planned phase comes (`evaluate`, `checkpoint`); all of them come
    after the last step as well. What a phase took is `time/<phase>` in the line of the step that
    follows it; of a phase that never came nothing is known, and nothing counted.
    """

    def __init__(
        self, steps: int, every: Mapping[str, int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._steps, self._every, self._clock = steps, every, clock
        self._own: deque[float] = deque(maxlen=STEPS)
        self._besides = {phase: deque[float](maxlen=BESIDES) for phase in every}
        self._at: float | None = None

    def add(self, step: int, metrics: Mapping[str, float]) -> float:
        """Note a finished step and return the seconds left after it."""
        before, self._at = self._at, self._clock()
        planned = {phase: metrics.get(f"time/{phase}", 0.0) for phase in self._besides}
        for phase, seconds in planned.items():
            if seconds > 0:
                self._besides[phase].append(seconds)
        if before is None:  # nobody knows when the first one began
            self._own.append(step_seconds(metrics))
        else:
            self._own.append(max(0.0, self._at - before - sum(planned.values())))
        return self._estimate(step)

    def _estimate(self, step: int) -> float:
        left = max(0, self._steps - step)
        seconds = left * statistics.median(self._own)
        for phase, taken in self._besides.items():
            if taken:
                seconds += self._count(step, self._every[phase]) * statistics.median(taken)
        return seconds

    def _count(self, step: int, every: int) -> int:
        """Return how often something comes after this step and to the end, if it is due `every` steps."""
        # After the step itself, too: it is said before.
        between = self._steps // every - max(0, step - 1) // every
        return between + (self._steps % every != 0)
