"""The stages of a run as its report shows them: where each begins, and its mean reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

__all__ = ["Stretch", "stretches"]


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
    lines: dict[int, list[Mapping[str, Any]]] = {}
    for line in metrics:
        if "schedule/stage" in line:
            lines.setdefault(int(line["schedule/stage"]), []).append(line)
    names = [stage.get("name") for stage in config.get("stages", ())]
    found = []
    for number, own in sorted(lines.items()):
        name = names[number - 1] if number <= len(names) else None
        rewards = [line["reward/mean"] for line in own if line.get("reward/mean") is not None]
        label = f"stage {number}" + (f" ({name})" if name else "")
        mean = fmean(rewards) if rewards else None
        found.append(Stretch(label, own[0]["step"], own[-1]["step"], mean))
    return tuple(found)
