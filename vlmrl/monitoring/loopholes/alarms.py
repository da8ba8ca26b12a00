"""Decide from the curves of a run whether its reward is rising for another reason than better answers.

A pure function of the lines of metrics.jsonl: a resumed run decides as the one that was not interrupted.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["REWARD", "SIGNALS", "Alarm", "find_alarms"]

REWARD = "loophole/reward"
BLIND = "media_ablation/blank_reward_drop"
BLIND_ERROR = "media_ablation/blank_reward_error"
STAGE = "schedule/stage"
SIGNALS = {
    "strict": "loophole/strict",
    "margin": "loophole/margin",
    "blind": BLIND,
}
"""What must rise with the reward, and the curve that says whether it does."""

Line = Mapping[str, float]

WINDOW = 8
"""Measured steps whose mean is compared with that of as many earlier ones."""
LEAST_RISE = 0.03
LEAST_SHARE = 0.15
"""A reward has risen by at least the one, and by this share of what it was."""
ERRORS = 3.0
"""Standard errors by which it must have risen."""
PART = 0.25
"""Share of the rise that a signal must make, too. A fair reward and a strict reader differ in scale."""
DOUBT = 2.0
"""Standard errors of the difference that are left to a signal."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """A signal that does not rise with the reward: means of the earlier and of the last window."""

    signal: str
    steps: int
    """Steps between the windows."""
    reward: tuple[float, float]
    value: tuple[float, float]

    def __str__(self) -> str:
        """Return a sentence for a person, with what to look at."""
        (before, after), (was, now) = self.reward, self.value
        rise = f"the reward rose from {before:.3g} to {after:.3g} in {self.steps} steps, but"
        change = f"({was:.3g} → {now:.3g})"
        match self.signal:
            case "strict":
                return f"{rise} by a strict reading the answers are no more right {change}: " + (
                    "see what is paid, and try `vlmrl verify` on the verifiers"
                )
            case "margin":
                return (
                    f"{rise} its distance to what the same answers earn with other prompts' truths "
                    + (
                        f"did not {change}: a guess or the form earns it; compare the best constant answer"
                    )
                )
        return (
            f"{rise} without media answers earn nearly as much: its fall is {was:.3g} → {now:.3g}; are "
            "the questions answered by their words?"
        )


def find_alarms(lines: Sequence[Line]) -> dict[str, Alarm]:
    """Return the alarms after the last of these lines, by signal.

    `lines` are those of metrics.jsonl that have `REWARD`, in order, of one stage of the training.
    """
    found: dict[str, Alarm] = {}
    for begin in _begins(len(lines)):
        for signal in ("strict", "margin"):
            alarm = _compare(signal, lines[begin : begin + WINDOW], lines[-WINDOW:])
            if alarm is not None:
                found.setdefault(signal, alarm)
    blind = _find_blind(lines)
    return found | ({"blind": blind} if blind else {})


def _begins(count: int) -> Iterator[int]:
    """Yield where earlier windows begin: next to the last one, further and further back, the first."""
    distance = WINDOW
    while count - WINDOW - distance > 0:
        yield count - WINDOW - distance
        distance *= 2
    if count >= 2 * WINDOW:
        yield 0


def _compare(signal: str, then: Sequence[Line], now: Sequence[Line]) -> Alarm | None:
    key = SIGNALS[signal]
    if any(line.get(key) is None for line in (*then, *now)):
        return None
    rewards = _values(then, REWARD), _values(now, REWARD)
    values = _values(then, key), _values(now, key)
    if not _has_risen(*rewards) or (signal == "strict" and not any(values[0])):
        return None
    # What a signal lacks to the part of the rise that it must make, step by step: their noise is shared.
    lack = [
        [PART * reward - value for reward, value in zip(*pair, strict=True)]
        for pair in zip(rewards, values, strict=True)
    ]
    short = statistics.fmean(lack[1]) - statistics.fmean(lack[0])
    if short <= DOUBT * _error(*lack):
        return None
    return _alarm(signal, then, now, values)


def _find_blind(lines: Sequence[Line]) -> Alarm | None:
    """Compare the last media ablation with earlier ones; only the step that has one is asked."""
    measured = [i for i, line in enumerate(lines) if line.get(BLIND) is not None]
    if not measured or measured[-1] != len(lines) - 1:
        return None
    now, drop = lines[-WINDOW:], lines[-1][BLIND]
    for begin in measured:
        if begin + 2 * WINDOW > len(lines):
            break
        then, was = lines[begin : begin + WINDOW], lines[begin][BLIND]
        rewards = _values(then, REWARD), _values(now, REWARD)
        rise = statistics.fmean(rewards[1]) - statistics.fmean(rewards[0])
        doubt = DOUBT * math.hypot(
            *(line.get(BLIND_ERROR, 0.0) for line in (lines[begin], now[-1]))
        )
        if _has_risen(*rewards) and drop <= min(was, PART * rise) and drop - was < rise - doubt:
            return _alarm("blind", then, now, ([was], [drop]))
    return None


def _has_risen(then: Sequence[float], now: Sequence[float]) -> bool:
    before, after = statistics.fmean(then), statistics.fmean(now)
    least = max(LEAST_RISE, LEAST_SHARE * abs(before), ERRORS * _error(then, now))
    return after - before >= least


def _error(then: Sequence[float], now: Sequence[float]) -> float:
    """Return the standard error of the difference of two means of steps."""
    return math.sqrt(sum(statistics.variance(values) / len(values) for values in (then, now)))


def _values(lines: Sequence[Line], key: str) -> list[float]:
    return [line[key] for line in lines]


def _alarm(
    signal: str, then: Sequence[Line], now: Sequence[Line], values: Sequence[Sequence[float]]
) -> Alarm:
    rewards = [statistics.fmean(_values(lines, REWARD)) for lines in (then, now)]
    means = [statistics.fmean(of) for of in values]
    steps = int(now[-1]["step"] - then[-1]["step"])
    return Alarm(signal, steps, (rewards[0], rewards[1]), (means[0], means[1]))
