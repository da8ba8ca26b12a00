"""Values that change over training: what a schedule may say, and its value at some progress.

    {schedule: [[0, 512], [0.5, 1024]]}             steps: 512, and 1024 from half of training on
    {schedule: {linear: [0.04, 0]}}                 a straight line from the start of training to its end
    {schedule: {cosine: [0.04, 0], until: 0.8}}     half a cosine wave, and 0 from 0.8 on

`from` and `until` bound a line or wave; before and after it, its first and last value hold. Progress
is the share of training done, in [0, 1): that of the first step is 0.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

from vlmrl.errors import UserError

FORMS = (
    "a schedule is [[0, value], [share, value], ...] with rising shares of training up to 1, or "
    "{linear: [first, last]} or {cosine: [first, last]} with numbers and perhaps `from` and `until`"
)
CURVES: dict[str, Callable[[float], float]] = {
    "linear": lambda share: share,
    "cosine": lambda share: 0.5 * (1 - math.cos(math.pi * share)),
}
"""Form -> share of the way from the first value to the last, by the share of the time."""
_PAIR = {"type": "array", "minItems": 2, "maxItems": 2}
JSON_SCHEMA = {
    "type": "object",
    "properties": {
        "schedule": {
            "anyOf": [
                {"type": "array", "items": _PAIR},
                {
                    "type": "object",
                    "properties": {
                        **dict.fromkeys(CURVES, _PAIR),
                        "from": {"type": "number"},
                        "until": {"type": "number"},
                    },
                    "additionalProperties": False,
                },
            ]
        }
    },
    "required": ["schedule"],
    "additionalProperties": False,
}
"""How editors are told of it."""


def is_schedule(value: object) -> bool:
    """Return whether a value of a config is written as a schedule, sound or not."""
    return isinstance(value, Mapping) and set(value) == {"schedule"}


def check(value: Any, where: str = "") -> None:
    """Refuse a schedule that makes no sense, with a UserError that `where` begins; let other values pass."""
    if is_schedule(value) and not _is_sound(value["schedule"]):
        raise UserError(f"{where + ': ' if where else ''}{FORMS}; got {value['schedule']!r}")


def resolve(value: Any, progress: float, where: str = "") -> Any:
    """Return a schedule's value at `progress`, in [0, 1]; any other value unchanged.

    Of steps the last whose share is reached counts. Within a line or wave the value is a float, at
    its ends as it is written.

    Raises:
        UserError: as `check`.
    """
    if not is_schedule(value):
        return value
    check(value, where)
    plan = value["schedule"]
    if not isinstance(plan, Mapping):
        return [v for share, v in plan if share <= progress][-1]
    ((form, (first, last)),) = ((k, v) for k, v in plan.items() if k in CURVES)
    begin, end = _bounds(plan)
    if progress <= begin:
        return first
    if progress >= end:
        return last
    return first + (last - first) * CURVES[form]((progress - begin) / (end - begin))


def moments(value: Any, where: str = "") -> list[float]:
    """Return each progress at which something begins, and the middle of a line or wave; 0 included.

    The smallest and largest value, and one of each type, are among the values at these.

    Raises:
        UserError: as `check`.
    """
    check(value, where)
    if not is_schedule(value):
        return [0.0]
    plan = value["schedule"]
    if not isinstance(plan, Mapping):
        return [float(share) for share, _ in plan]
    begin, end = _bounds(plan)
    return sorted({0.0, begin, (begin + end) / 2, end})


def _bounds(plan: Mapping[str, Any]) -> tuple[float, float]:
    return float(plan.get("from", 0.0)), float(plan.get("until", 1.0))


def _is_sound(plan: object) -> bool:
    if isinstance(plan, Mapping):
        forms = [key for key in plan if key in CURVES]
        bounds = [plan.get("from", 0), plan.get("until", 1)]
        return (
            len(forms) == 1
            and set(plan) <= {*forms, "from", "until"}
            and _are_numbers(plan[forms[0]], 2)
            and _are_numbers(bounds, 2)
            and 0 <= bounds[0] < bounds[1] <= 1
        )
    if not isinstance(plan, list | tuple) or not plan:
        return False
    if not all(isinstance(step, list | tuple) and len(step) == 2 for step in plan):
        return False
    shares = [step[0] for step in plan]
    if not _are_numbers(shares, len(shares)) or shares[0] != 0 or shares[-1] > 1:
        return False
    return all(a < b for a, b in itertools.pairwise(shares))


def _are_numbers(values: object, count: int) -> bool:
    return (
        isinstance(values, list | tuple)
        and len(values) == count
        and all(
            isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v)
            for v in values
        )
    )
