"""The loophole watch of a run: what it adds to metrics.jsonl, what it says, and the rows to look at.

It generates nothing and draws no random number, so the weights are those of a run without it.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vlmrl.monitoring.loopholes.alarms import (
    BLIND_ERROR,
    REWARD,
    SIGNALS,
    STAGE,
    Alarm,
    find_alarms,
)
from vlmrl.monitoring.loopholes.measure import Measured, measure
from vlmrl.runs import rank_shards, run_folder
from vlmrl.runs.rollout_rows import rows
from vlmrl.schema import Rewards, Rollouts
from vlmrl.scoring.scorer import Scorer
from vlmrl.system import distributed
from vlmrl.system.atomic_files import append_line

__all__ = ["LoopholeWatch"]

NUM_ROWS = 6
"""Prompts that are kept of a step with a new alarm."""


@dataclass
class LoopholeWatch:
    """Measures every `every` steps; 0: never. Call it on all ranks alike."""

    scorer: Scorer
    every: int
    folder: Path
    tell: Callable[[str], None]
    """A function that shows the user a message."""
    _lines: list[dict[str, float]] = field(default_factory=list, init=False, repr=False)
    """Of each measured step of this stage what the alarms look at."""
    _told: set[str] = field(default_factory=set, init=False, repr=False)
    """Signals of this stage that were told."""

    def restore(self, lines: Sequence[Mapping[str, float]]) -> None:
        """Go on after these lines of metrics.jsonl."""
        for line in lines:
            if line.get(REWARD) is not None:
                self._append(line)
                self._told |= {s for s in SIGNALS if line.get(f"loophole/flag/{s}")}

    def _append(self, line: Mapping[str, float]) -> None:
        """Note a step; with a new stage, whose rewards are others, all begins anew."""
        if self._lines and self._lines[-1].get(STAGE) != line.get(STAGE):
            self._lines, self._told = [], set()
        keys = ("step", REWARD, STAGE, BLIND_ERROR, *SIGNALS.values())
        self._lines.append({key: line[key] for key in keys if line.get(key) is not None})

    def __call__(
        self,
        step: int,
        progress: float,
        rollouts: Rollouts,
        rewards: Rewards,
        line: Mapping[str, float],
    ) -> dict[str, float]:
        """Return what is added to the line of a step; `progress` is that with which it was scored.

        A new alarm is told, and appended to loopholes.jsonl with the prompts that gave rise to it most.
        """
        if not self.every or step % self.every:
            return {}
        found = measure(self.scorer, rollouts, rewards, progress)
        numbers = _average(found)
        if REWARD not in numbers:
            return {}
        self._append({**line, **numbers, "step": step})
        alarms = find_alarms(self._lines) if distributed.is_main() else {}
        flags = {f"loophole/flag/{signal}": float(signal in alarms) for signal in SIGNALS}
        new = [alarm for signal, alarm in alarms.items() if signal not in self._told]
        self._told |= alarms.keys()
        if new:
            self._say(step, new, found, rollouts, rewards)
        return numbers | flags

    def _say(
        self,
        step: int,
        alarms: Sequence[Alarm],
        found: Sequence[Measured],
        rollouts: Rollouts,
        rewards: Rewards,
    ) -> None:
        for alarm in alarms:
            self.tell(f"step {step}: loophole? {alarm}")
        ranked = sorted(found, key=_suspicion(alarms[0].signal), reverse=True)
        prompts = list(dict.fromkeys(one.p for one in ranked))[:NUM_ROWS]
        shown = rows(run_folder.media_folder(self.folder), rollouts, rewards, None, prompts)
        by_place = {(one.p, one.g): one for one in found}
        for p, row in zip(prompts, shown, strict=True):
            for g, completion in enumerate(row["completions"]):
                completion["loophole"] = _facts(by_place.get((p, g)))
        line = {"step": step, "alarms": {a.signal: str(a) for a in alarms}, "rows": shown}
        append_line(run_folder.loopholes_path(self.folder), line)


def _suspicion(signal: str) -> Callable[[Measured], float]:
    """Return what orders completions: how much more they earn than the signal says they should."""

    def excess(one: Measured) -> float:
        if signal == "strict":
            return one.reward - (one.strict if one.strict is not None else one.reward)
        return one.elsewhere if one.elsewhere is not None else -1.0

    return excess


def _facts(one: Measured | None) -> dict[str, object]:
    if one is None:
        return {}
    signs = list(one.signs.names) if one.signs else []
    return {"strict": one.strict, "elsewhere": one.elsewhere, "signs": signs}


# -------------------------------------------------------------------------------------- numbers


def _average(found: Sequence[Measured]) -> dict[str, float]:
    """Return the means over the completions of all ranks."""
    values: dict[str, list[float]] = defaultdict(list)
    for one in found:
        values[REWARD].append(one.reward)
        for name, value in (
            ("strict", one.strict),
            ("elsewhere", one.elsewhere),
            ("form_share", one.form_share),
        ):
            if value is not None:
                values[f"loophole/{name}"].append(value)
        if one.own is not None and one.elsewhere is not None:
            values["loophole/margin"].append(one.own - one.elsewhere)
        if one.signs is not None:
            values["loophole/candidates"].append(one.signs.candidates)
            values["loophole/copied"].append(one.signs.copied)
            values["loophole/repeated"].append(one.signs.repeated)
            if one.signs.fallback is not None:
                values["loophole/fallback"].append(one.signs.fallback)
    for correlation in _length_correlations(found):
        values["loophole/length_correlation"].append(correlation)
    means = rank_shards.average(values)
    return means | _commonest(found)


def _length_correlations(found: Sequence[Measured]) -> list[float]:
    """Return for each group Pearson's correlation of reward and length, where both vary."""
    groups: dict[int, list[Measured]] = defaultdict(list)
    for one in found:
        groups[one.p].append(one)
    pairs = [([o.reward for o in g], [float(o.length) for o in g]) for g in groups.values()]
    return [
        statistics.correlation(paid, lengths)
        for paid, lengths in pairs
        if len(set(paid)) > 1 and len(set(lengths)) > 1
    ]


def _commonest(found: Sequence[Measured]) -> dict[str, float]:
    """Return the share of the commonest answer among all answers."""
    counts: Counter[str] = Counter()
    for share in distributed.gather(Counter(one.key for one in found if one.key is not None)):
        counts.update(share)
    return {"loophole/commonest": max(counts.values()) / counts.total()} if counts else {}
