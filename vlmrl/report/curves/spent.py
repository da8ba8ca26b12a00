"""What the steps of a run took: runs can be compared by something else than the numbers of steps."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

from vlmrl.runs.metric_glossary import step_seconds

__all__ = ["AXES", "Across", "Spent"]

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
        found = cls(config["rollout"]["prompts"] * config["rollout"]["group_size"])
        found.extend(lines)
        return found

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
