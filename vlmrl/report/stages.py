"""The stages of a run as its report shows them: where each begins, and its mean reward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["GrowingStages", "Stretch", "stretches"]


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
        found = []
        for number, (first, last, total, count) in sorted(self._found.items()):
            name = names[number - 1] if number <= len(names) else None
            label = f"stage {number}" + (f" ({name})" if name else "")
            found.append(Stretch(label, first, last, total / count if count else None))
        return tuple(found)
