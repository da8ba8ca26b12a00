"""What the lines of a run's steps say, in one value that more lines can be added to: curves, time, stages."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal, get_args

from vlmrl.runs.metrics import step_seconds

Line = Mapping[str, Any]
"""A line of metrics.jsonl or sft.jsonl."""
Across = Literal["step", "samples", "seconds"]
AXES: tuple[Across, ...] = get_args(Across)

MAX_POINTS = 400
"""Points of a curve; a longer one is drawn as the means of equal stretches of steps."""


@dataclass(frozen=True, slots=True)
class Series:
    """One curve: `values[i]` belongs to `steps[i]`, None is a gap; `low`, `high` an interval."""

    name: str
    steps: tuple[int, ...]
    values: tuple[float | None, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


class StepLines:
    """Lines of metrics.jsonl or sft.jsonl; `seconds` and `batches` are spent up to each of `steps`."""

    def __init__(self, lines: Iterable[Line] = ()) -> None:
        self.lines: list[Line] = []
        self.steps: list[int] = []
        self.seconds: list[float] = []
        self.batches: list[int] = []
        self._columns: dict[str, tuple[list[int], list[float | None]]] = {}
        self.extend(lines)

    def extend(self, lines: Iterable[Line]) -> None:
        """Add the lines of the next steps."""
        for line in lines:
            seconds, batches = (self.seconds[-1], self.batches[-1]) if self.lines else (0.0, 0)
            self.lines.append(line)
            self.seconds.append(seconds + step_seconds(line))
            self.batches.append(batches + round(line.get("rollout/batches") or 1))
            self.steps.append(step := line["step"])
            for key, value in line.items():
                if key != "step":
                    if key not in self._columns:
                        self._columns[key] = ([], [])
                    steps, values = self._columns[key]
                    steps.append(step)
                    values.append(value)

    @property
    def keys(self) -> list[str]:
        """Return the metrics, in order of appearance."""
        return list(self._columns)

    def curve(self, key: str) -> Series:
        """Return a metric over the steps that have it, in at most `MAX_POINTS` points."""
        steps, values = self._columns.get(key, ([], []))
        size = -(-len(steps) // MAX_POINTS)
        if size <= 1:
            return Series(key, tuple(steps), tuple(values))
        means: list[float | None] = []
        for at in range(0, len(steps), size):
            known = [v for v in values[at : at + size] if v is not None]
            means.append(sum(known) / len(known) if known else None)
        ends = steps[size - 1 :: size] + (steps[-1:] if len(steps) % size else [])
        return Series(key, tuple(ends), tuple(means))

    def newest(self, key: str) -> Any:
        """Return the last known value of a metric; None without any."""
        values = self._columns.get(key, ((), ()))[1]
        return next((value for value in reversed(values) if value is not None), None)

    def seconds_after(self, step: int) -> float | None:
        """Return the seconds of all steps up to this one; None if there is no line of it."""
        at = bisect_right(self.steps, step) - 1
        return self.seconds[at] if at >= 0 and self.steps[at] == step else None

    def beside_s(self) -> float:
        """Return the seconds beside the phases of the steps and the cold start, such as evaluations."""
        timed = [key for key in self._columns if key.startswith("time/") and key != "time/sft"]
        whole = sum(sum(filter(None, self._columns[key][1])) for key in timed)
        return whole - (self.seconds[-1] if self.seconds else 0.0)

    def place(self, step: int, across: Across, batch: int) -> int:
        """Return where a step is on an axis: what was spent when it was done, rounded; 0 before the first.

        `batch` completions are sampled for a batch of prompts; dynamic sampling draws several batches.
        """
        if across == "step":
            return step
        done = bisect_right(self.steps, step)
        if not done:
            return 0
        return (
            batch * self.batches[done - 1] if across == "samples" else round(self.seconds[done - 1])
        )


def mean_of(lines: Iterable[Line], key: str) -> float | None:
    """Return the mean of a metric over the lines that know it; None if none does."""
    known = [line[key] for line in lines if line.get(key) is not None]
    return fmean(known) if known else None


@dataclass(frozen=True, slots=True)
class Stretch:
    """The steps of one stage; `reward` is the mean over them, None if none has any."""

    label: str
    first: int
    last: int
    reward: float | None


def cold_start_parts(config: Mapping[str, Any]) -> tuple[Stretch, ...]:
    """Return the parts of the cold start, if in the first some towers train alone."""
    sft = config.get("sft") or {}
    align = sft.get("align")
    if align is None:
        return ()
    last = align["steps"]
    alone = f"{', '.join(align['towers'])} alone"
    others = Stretch("all that trains", last + 1, last + sft["max_steps"], None)
    return Stretch(alone, 1, last, None), others


def stretches(config: Mapping[str, Any], lines: Sequence[Line]) -> tuple[Stretch, ...]:
    """Return the stages that a run has reached, from its config and the lines of metrics.jsonl."""
    names = [stage.get("name") for stage in config.get("stages", ())]
    by_stage: dict[int, list[Line]] = {}
    for line in lines:
        if "schedule/stage" in line:
            by_stage.setdefault(int(line["schedule/stage"]), []).append(line)
    stages = []
    for number, own in sorted(by_stage.items()):
        name = names[number - 1] if number <= len(names) else None
        label = f"stage {number}" + (f" ({name})" if name else "")
        reward = mean_of(own, "reward/mean")
        stages.append(Stretch(label, own[0]["step"], own[-1]["step"], reward))
    return tuple(stages)
