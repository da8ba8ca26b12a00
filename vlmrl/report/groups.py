"""What the groups in a run's rollout files say of its rows: how difficult, when solved, reward by length."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean, pstdev
from typing import Any

from vlmrl.report.series import CurvePanel, CurveSection, Series

BANDS = ("none", "less than half", "half or more", "all")
"""How many completions of a group pass."""
TITLE = "Rows and groups"
LENGTH_BINS = 8
FEWEST = 10
"""Fewest completions of a bin of lengths."""

Rows = Mapping[int, Sequence[Mapping[str, Any]]]
"""By step the lines of rollouts/step-N.jsonl."""


@dataclass(frozen=True, slots=True)
class Solved:
    """A row, and the first step whose group was seen, more than half right, and all right; None: none was."""

    source: str
    id: str
    seen: int
    more_than_half: int | None
    all: int | None


@dataclass(frozen=True, slots=True)
class Groups:
    """What is kept of all groups of the rollout files, each of which is read once."""

    metric: str
    threshold: float
    rates: tuple[tuple[int, tuple[str, str], float], ...]
    """Step, row and pass rate of each group that has a score."""
    lengths: Mapping[str, Sequence[tuple[int, float]]]
    """Length and reward of the completions of the first and the last third of the steps, sorted."""


def read_groups(config: Mapping[str, Any], rows: Rows) -> Groups:
    """Return what the report tells of groups; `rows` may read its files when asked for a step."""
    metric, threshold = _pass(config)
    steps = sorted(rows)
    third = max(1, len(steps) // 3) if len(steps) > 1 else 0
    thirds = {"first third of the steps": steps[:third], "last third": steps[-third:][:third]}
    wanted: dict[int, list[str]] = {}
    for name, chosen in thirds.items():
        for step in chosen:
            wanted.setdefault(step, []).append(name)
    rates, lengths = [], {name: list[tuple[int, float]]() for name in thirds}
    for step in steps:
        groups = rows[step]
        rates += [(step, *rate) for rate in _rates(groups, metric, threshold)]
        for name in wanted.get(step, ()):
            lengths[name] += _lengths(groups)
    return Groups(metric, threshold, tuple(rates), {k: sorted(v) for k, v in lengths.items()})


def group_section(groups: Groups) -> CurveSection | None:
    """Return the panels of the rollout files; None if nothing in them has a score."""
    if not groups.rates:
        return None
    steps = tuple(sorted({step for step, _, _ in groups.rates}))
    panels = [_difficulty(steps, groups.rates), _solved_by(steps, solved_rows(groups))]
    if lengths := _reward_by_length(groups):
        panels.append(lengths)
    about = (
        f"From the steps in rollouts/: a completion passes when its {groups.metric} is at least "
        f"{groups.threshold:g}; rows are counted from the first such group on. By length: means with "
        "95 % intervals."
    )
    return CurveSection(TITLE, about, tuple(panels))


def solved_rows(groups: Groups) -> list[Solved]:
    """Return each row of the rollout files in the order in which it was first seen."""
    first: dict[tuple[str, str], list[int | None]] = {}
    for step, key, rate in groups.rates:
        known = first.setdefault(key, [step, None, None])
        for place, reached in ((1, rate > 0.5), (2, rate == 1)):
            if reached and known[place] is None:
                known[place] = step
    return [Solved(*key, seen or 0, half, whole) for key, (seen, half, whole) in first.items()]


def _pass(config: Mapping[str, Any]) -> tuple[str, float]:
    """Return the name of the score that decides whether a completion passes, and from where on it does."""
    evaluation = config.get("evaluation") or {}
    metric = str(evaluation.get("metric", "reward")).rpartition("/")[2]
    return metric, float(evaluation.get("pass_threshold", 0.5))


def _rates(
    groups: Sequence[Mapping[str, Any]], metric: str, threshold: float
) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield row and pass rate of each group of a step that has a score."""
    for group in groups:
        scores = [_score(one, metric) for one in group["completions"]]
        known = [score for score in scores if score is not None]
        if known:
            rate = sum(score >= threshold for score in known) / len(known)
            yield (str(group["source"]), str(group["id"])), rate


def _lengths(groups: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, float]]:
    for group in groups:
        for one in group["completions"]:
            if one["valid"] and one["reward"] is not None:
                yield int(one["tokens"]), float(one["reward"])


def _score(completion: Mapping[str, Any], metric: str) -> float | None:
    """Return a completion's score by the metric, its reward where it has none such; None: it is masked."""
    if not completion["valid"]:
        return None
    verdict = completion["verdicts"].get(metric)
    score = completion["reward"] if verdict is None else verdict["score"]
    return None if score is None else float(score)


def _difficulty(
    steps: Sequence[int], rates: Sequence[tuple[int, tuple[str, str], float]]
) -> CurvePanel:
    found = {step: [0] * len(BANDS) for step in steps}
    for step, _, rate in rates:
        band = 0 if rate == 0 else 3 if rate == 1 else 1 if rate < 0.5 else 2
        found[step][band] += 1
    series = tuple(
        Series(name, tuple(steps), tuple(found[s][band] / sum(found[s]) for s in steps))
        for band, name in enumerate(BANDS)
    )
    return CurvePanel("Groups by how many completions pass", series, "share", stacked=True)


def _solved_by(steps: Sequence[int], solved: Sequence[Solved]) -> CurvePanel:
    counts: dict[str, list[int] | list[int | None]] = {
        "seen": [one.seen for one in solved],
        "more than half right": [one.more_than_half for one in solved],
        "all right": [one.all for one in solved],
    }
    series = []
    for name, first in counts.items():
        at = Counter(first)
        values = accumulate(float(at[step]) for step in steps)
        series.append(Series(name, tuple(steps), tuple(values)))
    return CurvePanel("Rows, first seen and first solved", tuple(series))


def _reward_by_length(groups: Groups) -> CurvePanel | None:
    """Return the mean reward by length, of the first and last third of the steps; None without lengths."""
    found = (_binned(name, pairs) for name, pairs in groups.lengths.items())
    series = tuple(curve for curve in found if curve)
    return CurvePanel("Reward by length", series, across="tokens") if series else None


def _binned(name: str, pairs: Sequence[tuple[int, float]]) -> Series | None:
    """Return means over bins of equal counts of (length, reward), sorted; equal lengths stay together."""
    size = max(FEWEST, math.ceil(len(pairs) / LENGTH_BINS))
    bins: list[list[tuple[int, float]]] = []
    for pair in pairs:
        if not bins or (len(bins[-1]) >= size and bins[-1][-1][0] != pair[0]):
            bins.append([])
        bins[-1].append(pair)
    whole = [one for one in bins if len(one) >= FEWEST]
    if len(whole) < 2:
        return None
    middle = tuple(round(fmean(length for length, _ in one)) for one in whole)
    means = tuple(fmean(reward for _, reward in one) for one in whole)
    reach = [1.96 * pstdev([r for _, r in one]) / math.sqrt(len(one)) for one in whole]
    low = tuple(mean - by for mean, by in zip(means, reach, strict=True))
    high = tuple(mean + by for mean, by in zip(means, reach, strict=True))
    return Series(name, middle, means, low, high)
