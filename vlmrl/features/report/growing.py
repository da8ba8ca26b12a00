"""What grows with the steps of a run: its curves, what was spent, its stages. Lines are added at the end.

What curves and stages take does not grow with the run; what was spent takes 24 bytes a step.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from vlmrl.features.report.series import Series
from vlmrl.runs.metrics import step_seconds

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


Across = Literal["step", "samples", "seconds"]
AXES: tuple[Across, ...] = get_args(Across)


class Spent:
    """Seconds of the steps and completions sampled, up to each step: 24 bytes a step.

    `batch` completions are sampled for a batch of prompts; dynamic sampling draws several batches.
    """

    def __init__(self, batch: int = 1) -> None:
        self._batch = batch
        self._steps, self._samples = array("q"), array("q")
        self._seconds = array("d")

    @classmethod
    def of(cls, config: Mapping[str, Any], lines: Iterable[Mapping[str, Any]] = ()) -> Spent:
        """Return what the steps of a run took, from its config and lines of metrics.jsonl."""
        spent = cls(config["rollout"]["prompts"] * config["rollout"]["group_size"])
        spent.extend(lines)
        return spent

    def extend(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Add lines of metrics.jsonl."""
        for line in lines:
            seconds, samples = (self._seconds[-1], self._samples[-1]) if self._steps else (0.0, 0)
            self._steps.append(line["step"])
            self._seconds.append(seconds + step_seconds(line))
            self._samples.append(samples + self._batch * round(line.get("rollout/batches") or 1))

    def seconds_after(self, step: int) -> float | None:
        """Return the seconds of all steps up to this one; None if there is no line of it."""
        at = bisect_right(self._steps, step) - 1
        return self._seconds[at] if at >= 0 and self._steps[at] == step else None

    def place(self, step: int, across: Across) -> int:
        """Return where a step is on an axis: what was spent when it was done, rounded; 0 before the first."""
        if across == "step":
            return step
        done = bisect_right(self._steps, step)
        spent = self._samples if across == "samples" else self._seconds
        return round(spent[done - 1]) if done else 0


@dataclass(frozen=True, slots=True)
class Stretch:
    """The steps of one stage; `reward` is the mean over them, None if none has any."""

    label: str
    first: int
    last: int
    reward: float | None


def stretches(
    config: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]
) -> tuple[Stretch, ...]:
    """Return the stages that a run has reached, from its config and the lines of metrics.jsonl."""
    stages = GrowingStages()
    stages.extend(metrics)
    return stages.stretches(config)


class GrowingStages:
    """The stages of a run that goes on, by number: first and last step, and the sum and number of rewards."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[int, int, float, int]] = {}

    def extend(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Add lines of metrics.jsonl."""
        for line in lines:
            if "schedule/stage" in line:
                number, step = int(line["schedule/stage"]), line["step"]
                first, _, total, count = self._found.get(number, (step, step, 0.0, 0))
                reward = line.get("reward/mean")
                known = reward is not None
                self._found[number] = (first, step, total + (reward or 0.0), count + known)

    def stretches(self, config: Mapping[str, Any]) -> tuple[Stretch, ...]:
        """Return the stages so far, with the names that the config gives them."""
        names = [stage.get("name") for stage in config.get("stages", ())]
        stages = []
        for number, (first, last, total, count) in sorted(self._found.items()):
            name = names[number - 1] if number <= len(names) else None
            label = f"stage {number}" + (f" ({name})" if name else "")
            stages.append(Stretch(label, first, last, total / count if count else None))
        return tuple(stages)
