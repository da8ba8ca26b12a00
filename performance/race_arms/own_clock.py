"""The race's clock as a tracker of vlmrl: `tracking: {performance/race_arms/own_clock.py:OwnClock: {}}`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))

from clock import Clock

from vlmrl.runs.tracker import Phase, TrackedRun, Tracker


@dataclass
class OwnClock(Tracker):
    """Waits for its turn before each step."""

    _clock: Any = field(default=None, init=False, repr=False)

    def start(self, run: TrackedRun) -> None:
        """Wait before the first step."""
        self._clock = Clock()
        self._clock.wait(0)

    def log(self, phase: Phase, step: int, metrics: Mapping[str, float]) -> None:
        """Wait after a step."""
        self._clock.wait(step)

    def log_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Nothing is evaluated while the clock runs."""
