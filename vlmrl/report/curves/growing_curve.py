"""Curves of a run that goes on: values are added at the end, and what they take does not grow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vlmrl.report.series import Series

__all__ = ["GrowingCurve", "GrowingCurves"]

MOST = 256
"""Stretches of a curve; when there are more, two become one."""


class GrowingCurve:
    """The means of equal stretches of values, each at its last step; a gap is a stretch without values."""

    def __init__(self) -> None:
        self._size = 1
        self._filled = 0
        self._steps: list[int] = []
        self._sums: list[float] = []
        self._counts: list[int] = []

    def add(self, step: int, value: float | None) -> None:
        """Add the value of the next step; None where there is none."""
        if self._filled == self._size or not self._steps:
            if len(self._steps) == MOST:
                self._halve()
            self._steps.append(step)
            self._sums.append(0.0)
            self._counts.append(0)
            self._filled = 0
        self._filled += 1
        self._steps[-1] = step
        if value is not None:
            self._sums[-1] += value
            self._counts[-1] += 1

    def series(self, name: str) -> Series:
        """Return the curve so far."""
        means = (s / n if n else None for s, n in zip(self._sums, self._counts, strict=True))
        return Series(name, tuple(self._steps), tuple(means))

    def mean(self) -> float | None:
        """Return the mean of all values; None without any."""
        return sum(self._sums) / sum(self._counts) if any(self._counts) else None

    def _halve(self) -> None:
        self._size *= 2
        self._steps = self._steps[1::2]
        self._sums = [a + b for a, b in zip(self._sums[::2], self._sums[1::2], strict=True)]
        self._counts = [a + b for a, b in zip(self._counts[::2], self._counts[1::2], strict=True)]


class GrowingCurves:
    """The curves of all metrics by key, in order of appearance."""

    def __init__(self) -> None:
        self._curves: dict[str, GrowingCurve] = {}

    def extend(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Add lines of metrics.jsonl or sft.jsonl."""
        for line in lines:
            step = line["step"]
            for key, value in line.items():
                if key == "step":
                    continue
                curve = self._curves.get(key)
                if curve is None:
                    curve = self._curves[key] = GrowingCurve()
                curve.add(step, value)

    def series(self) -> dict[str, Series]:
        """Return every curve so far."""
        return {key: curve.series(key) for key, curve in self._curves.items()}

    def one(self, key: str) -> Series | None:
        """Return one curve so far; None if it has no value yet."""
        return self._curves[key].series(key) if key in self._curves else None

    def mean(self, key: str) -> float | None:
        """Return the mean of all values of one curve; None if it has no value yet."""
        return self._curves[key].mean() if key in self._curves else None
