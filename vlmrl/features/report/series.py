"""Read the numbers of a run folder as panels of curves, for the page and for the PNG files alike.

Every metric is shown: one that no rule knows gets a panel of its own under "More".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from vlmrl.features.report.growing import Across, Series, StepLines
from vlmrl.runs.metrics import PHASES, Placement, Unit, find, placement, words_of

ALL = "all sources"
MAIN_COLOUR = {ALL: 0, "reward": 0}
"""Colour of the main curve of either kind of panel: the first."""
ONE_MODE = 0.95
"""Modes are not compared where this share of the completions is of one mode at every step."""


@dataclass(frozen=True, slots=True)
class CurvePanel:
    """Curves on one pair of axes; `stacked` ones are parts of a whole, `across` says what `steps` are."""

    title: str
    series: tuple[Series, ...]
    unit: Unit = ""
    stacked: bool = False
    across: Across | Literal["tokens"] = "step"
    levels: tuple[tuple[str, float], ...] = ()
    """Values to compare with, by name: lines across the whole panel."""
    about: str = ""
    """What the numbers are, in a sentence."""


@dataclass(frozen=True, slots=True)
class CurveSection:
    """Panels under one heading; `constants` are metrics that never changed."""

    title: str
    about: str
    panels: tuple[CurvePanel, ...]
    constants: tuple[tuple[str, float | None], ...] = ()


COLD_START = "Cold start"
ABOUT = {
    "Reward": "What the verifiers gave during training, over all sources and per source.",
    "Evaluation": "Held-out samples, greedy unless said otherwise. Bars are 95 % intervals.",
    "Rollouts": "A group is uniform when all its rewards are equal: it teaches nothing.",
    "Update": "The optimizer's side of each step.",
    "Models": "Frozen models beside the policy, which rewards ask: what it costs, and how often they fail.",
    "Schedules": "Keys of the config whose values change over training.",
    "Checks": "Does the model look (media ablation), does the engine compute what the trainer does (parity)?",
    "Loopholes": "Is the reward earned? Strict readings of the same answers, and what a guess earns.",
    "Time": "Wall seconds.",
    "Machines": "Memory and use of machines; own seconds are those in which a rank did not wait for others.",
    COLD_START: "Imitation of demonstrations, before the first GRPO step.",
    "More": "Metrics that this report has no place for.",
}
TITLES = {ALL: "All sources, greedy", f"{ALL}, sampled": "All sources, sampled at temperature 1"}
_MODE = re.compile("(?:sampled/)?mode/[^/]+/.+", re.DOTALL)
_SHARE = re.compile("(?:sampled/)?mode/[^/]+/share")
STACKED = "Seconds per step"
"""The panel whose curves are parts of a whole."""


def sections(
    metrics: StepLines, sft: StepLines, evaluations: Sequence[Mapping[str, object]]
) -> list[CurveSection]:
    """Return the panels of a run from lines of metrics.jsonl and sft.jsonl and the evals/step-N.json."""
    imitated = _placed(sft, lambda key: Placement(COLD_START, key, key, ""))
    by_title = {section.title: section for section in _placed(metrics, placement) + imitated}
    evaluated = CurveSection("Evaluation", ABOUT["Evaluation"], _evaluation(evaluations))
    by_title["Evaluation"] = evaluated
    ordered = (by_title[title] for title in ABOUT if title in by_title)
    return [section for section in ordered if section.panels or section.constants]


def colours(panel: CurvePanel, known: dict[str, int], count: int) -> list[int]:
    """Return a colour out of `count` for each curve; a name keeps its colour in `known` if it can."""
    if len(panel.series) == 1:
        return [0]
    taken: list[int] = []
    for series in panel.series:
        # A new name is never given the main colour first.
        wish = known.setdefault(series.name, 1 + (len(known) - len(MAIN_COLOUR)) % (count - 1))
        free = [c for c in (wish, *range(count)) if c not in taken]
        taken.append(free[0] if free else wish)
    return taken


def with_words(panel: CurvePanel) -> CurvePanel:
    """Return the panel with a title in words, and the glossary's sentence where it is about one metric."""
    entry = find(panel.title) or find(f"sft/{panel.title}")
    about = entry[1].replace("`", "") if entry else panel.about
    title = TITLES.get(panel.title) or words_of(panel.title) or panel.title
    return replace(panel, title=title, about=about)


def _placed(lines: StepLines, place: Callable[[str], Placement]) -> list[CurveSection]:
    compared = _has_modes(lines.keys, lines.lines)
    # With one source its curves are those of all sources.
    single = len({m[1] for key in lines.keys if (m := re.match("(?s)source/(.+)/", key))}) == 1
    shown: dict[str, dict[str, CurvePanel]] = {}
    for key in lines.keys:
        if (single and key.startswith("source/")) or (not compared and _compares_modes(key)):
            continue
        section, title, name, unit = place(key)
        panels = shown.setdefault(section, {})
        panel = panels.get(title, CurvePanel(title, (), unit, stacked=title == STACKED))
        curve = replace(lines.curve(key), name=name)
        panels[title] = replace(panel, series=(*panel.series, curve))
    return [_section(title, list(panels.values())) for title, panels in shown.items()]


def _has_modes(keys: Iterable[str], lines: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether completions with and without a thought can be compared at all."""
    shares = [key for key in keys if _SHARE.fullmatch(key)]
    known = ([line[key] for key in shares if line.get(key) is not None] for line in lines)
    return bool(shares) and any(0 < max(values) < ONE_MODE for values in known if values)


def _compares_modes(key: str) -> bool:
    return bool(_MODE.fullmatch(key)) and not _SHARE.fullmatch(key)


def _section(title: str, panels: Sequence[CurvePanel]) -> CurveSection:
    """Move the panels whose curves never change into `constants`, which are given in words.

    Phases are in the order of the step, other curves by name with the sum of all sources first.
    """
    constants, moving = [], []
    for panel in panels:
        if all(len(set(s.values)) == 1 < len(s.values) for s in panel.series):
            for series in panel.series:
                name = panel.title + (f": {series.name}" if len(panel.series) > 1 else "")
                constants.append((name, series.values[0]))
            continue
        order = list(PHASES) if panel.stacked else [ALL]
        ranked = sorted(
            panel.series,
            key=lambda s: (order.index(s.name) if s.name in order else len(order), s.name),
        )
        moving.append(replace(panel, series=tuple(ranked)))
    moving.sort(key=lambda panel: not panel.stacked)
    return CurveSection(title, ABOUT[title], tuple(moving), tuple(constants))


def _evaluation(results: Sequence[Mapping[str, Any]]) -> tuple[CurvePanel, ...]:
    """Return one panel for each scope (`_scope`), and one for pass@k."""
    curves: dict[str, dict[str, list[tuple[int, float, float, float]]]] = {}
    lines = [result["metrics"] for result in results]
    compared = _has_modes(dict.fromkeys(key for line in lines for key in line), lines)
    for result in results:
        for key, value in result["metrics"].items():
            if not compared and _compares_modes(key):
                continue
            low, high = result["intervals"].get(key, (value, value))
            title, name = _scope(key)
            point = (result["step"], value, low, high)
            curves.setdefault(title, {}).setdefault(name, []).append(point)
    panels: dict[tuple[Series, ...], CurvePanel] = {}
    for title, shown in curves.items():
        series = tuple(Series(n, *zip(*points, strict=True)) for n, points in shown.items())
        # The panel of a sole source says the same as that of all sources.
        panels.setdefault(series, CurvePanel(title, series))
    draws = [r for r in results if r.get("pass_at_k")]
    names = list(dict.fromkeys(k for r in draws for k in r["pass_at_k"]))
    passes = tuple(
        Series(
            f"k = {k}",
            tuple(r["step"] for r in draws if k in r["pass_at_k"]),
            tuple(r["pass_at_k"][k] for r in draws if k in r["pass_at_k"]),
        )
        for k in names
    )
    return (*panels.values(), *([CurvePanel("pass@k", passes, "share")] if passes else []))


def _scope(key: str) -> tuple[str, str]:
    """Return (title of the panel, name of the curve) of an evaluation's metric.

    Lengths, which are no shares, and what is compared between modes have panels of their own.
    """
    drawn = ", sampled" if key.startswith("sampled/") else ""
    key = key.removeprefix("sampled/")
    if match := re.fullmatch("(mode|forced)/(think|direct|none|gain)/(.+)", key, re.DOTALL):
        return f"{match[3]}, {'by mode' if match[1] == 'mode' else 'forced'}{drawn}", match[2]
    source, _, name = key.rpartition("/")
    if name == "length":
        return f"length, tokens{drawn}", source or ALL
    return f"{source or ALL}{drawn}", name


FLAT = 0.02
"""A curve that moves by this share of its largest value, or less, is flat."""


def smoothed(series: Series) -> Series | None:
    """Return the centred moving average over a twentieth of a noisy curve; None if none is needed.

    A noisy one goes up and down its range several times; a learning rate's does not.
    """
    reach = len(series.values) // 40
    known = [value for value in series.values if value is not None]
    if reach < 1 or not known:
        return None
    if sum(abs(b - a) for a, b in pairwise(known)) <= 4 * (max(known) - min(known)):
        return None
    means = []
    for i in range(len(series.values)):
        around = [v for v in series.values[max(0, i - reach) : i + reach + 1] if v is not None]
        means.append(sum(around) / len(around) if around else None)
    return replace(series, values=tuple(means))


def is_quiet(panel: CurvePanel) -> bool:
    """Return whether nothing happens in a panel: no curve moves by more than a fiftieth of its size."""
    for series in panel.series:
        known = [v for v in (smoothed(series) or series).values if v is not None]
        if len(known) == 1:
            return False
        if known and max(known) - min(known) > FLAT * max(map(abs, known)):
            return False
    return True
