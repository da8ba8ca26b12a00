"""Build the report's page: put everything from the run folder together and render it.

The page loads nothing: images are data URIs, style and script are inline, and its content policy
lets no other script run. Text from models and data is escaped by jinja2's autoescape.
"""

from __future__ import annotations

import io
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from vlmrl.errors import UserError
from vlmrl.features.report import curves
from vlmrl.features.report.compute_fit import ComputeFit, fit_panel
from vlmrl.features.report.first_screen import RunFacts, compare_ends, first_screen
from vlmrl.features.report.gallery import alarm_rows, alarm_sentences, galleries
from vlmrl.features.report.growing import Spent, Stretch, stretches
from vlmrl.features.report.held_out import scored_demonstrations
from vlmrl.features.report.series import (
    COLD_START,
    MAIN_COLOUR,
    CurvePanel,
    CurveSection,
    Series,
    colours,
    sections,
    smoothed,
    with_words,
)
from vlmrl.pages.media import Album
from vlmrl.pages.render import number, render
from vlmrl.runs import run_folder
from vlmrl.runs.rollout_rows import Row
from vlmrl.system.files import read_json, read_lines, write_bytes, write_lines

# --------------------------------------------------------------------------------------------------
# Draw the panels of a run as PNG files, for a README, a paper or a chat.


# The light palette of style.css.
PALETTE = (
    "#2563eb",
    "#d9480f",
    "#0d9467",
    "#b5369c",
    "#b7860b",
    "#0e8fb3",
    "#7048e8",
    "#64748b",
)
COLUMNS = 3


def save_plots(folder: Path, sections: list[CurveSection]) -> list[Path]:
    """Write one PNG for each section into plots/, named after it, e.g. plots/reward.png."""
    known = dict(MAIN_COLOUR)
    return [
        write_bytes(folder / "plots" / f"{name}.png", _png(section, known))
        for section in sections
        if section.panels and (name := section.title.lower().replace(" ", "_"))
    ]


def _png(section: CurveSection, known: dict[str, int]) -> bytes:
    columns = min(COLUMNS, len(section.panels))
    rows = -(-len(section.panels) // columns)
    figure = Figure(figsize=(4.6 * columns, 2.9 * rows), dpi=130, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel, axes in zip(section.panels, grid, strict=False):
        _plot(panel, axes, [PALETTE[i] for i in colours(panel, known, len(PALETTE))])
    for axes in grid[len(section.panels) :]:
        axes.set_axis_off()
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


def _plot(panel: CurvePanel, axes: Axes, palette: list[str]) -> None:
    title = axes.set_title(_short(panel.title), loc="left", fontsize=10, fontweight="bold")
    if panel.stacked:
        steps = sorted({step for series in panel.series for step in series.steps})
        parts = [dict(zip(s.steps, s.values, strict=True)) for s in panel.series]
        heights = [[part.get(step) or 0.0 for step in steps] for part in parts]
        names = [_short(series.name) for series in panel.series]
        axes.stackplot(steps, heights, labels=names, colors=palette, alpha=0.7)
    else:
        _draw_lines(panel, axes, palette)
    if panel.unit == "share":
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 2.5, 5, 10]))
    axes.grid(axis="y", color="#e3e7ee")
    axes.tick_params(labelsize=8, length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    legend = axes.legend(fontsize=7.5, frameon=False, ncols=2)
    for text in (title, *legend.get_texts()):
        text.set_parse_math(False)  # a name with dollar signs is not a formula


def _draw_lines(panel: CurvePanel, axes: Axes, palette: list[str]) -> None:
    for series, colour in zip(panel.series, palette, strict=True):
        values = [float("nan") if v is None else v for v in series.values]
        mean = smoothed(series)
        if mean:
            axes.plot(series.steps, values, color=colour, linewidth=0.8, alpha=0.3)
            values = [float("nan") if v is None else v for v in mean.values]
        marker = "o" if len(series.steps) <= 30 else ""
        axes.plot(
            series.steps,
            values,
            color=colour,
            label=_short(series.name),
            marker=marker,
            markersize=3,
        )
        if series.low:
            axes.vlines(series.steps, series.low, series.high, color=colour, alpha=0.6)


def _short(name: str) -> str:
    return name if len(name) <= 40 else f"{name[:39]}…"


# --------------------------------------------------------------------------------------------------
# What the groups in a run's rollout files say of its rows: how difficult, when solved, reward by length.


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
        for column, reached in ((1, rate > 0.5), (2, rate == 1)):
            if reached and known[column] is None:
                known[column] = step
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
        scores = [_score(completion, metric) for completion in group["completions"]]
        known = [score for score in scores if score is not None]
        if known:
            rate = sum(score >= threshold for score in known) / len(known)
            yield (str(group["source"]), str(group["id"])), rate


def _lengths(groups: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, float]]:
    for group in groups:
        for completion in group["completions"]:
            if completion["valid"] and completion["reward"] is not None:
                yield int(completion["tokens"]), float(completion["reward"])


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
    counts = {step: [0] * len(BANDS) for step in steps}
    for step, _, rate in rates:
        band = 0 if rate == 0 else 3 if rate == 1 else 1 if rate < 0.5 else 2
        counts[step][band] += 1
    series = tuple(
        Series(name, tuple(steps), tuple(counts[s][band] / sum(counts[s]) for s in steps))
        for band, name in enumerate(BANDS)
    )
    return CurvePanel("Groups by how many completions pass", series, "share", stacked=True)


def _solved_by(steps: Sequence[int], solved: Sequence[Solved]) -> CurvePanel:
    counts: dict[str, list[int] | list[int | None]] = {
        "seen": [row.seen for row in solved],
        "more than half right": [row.more_than_half for row in solved],
        "all right": [row.all for row in solved],
    }
    series = []
    for name, first in counts.items():
        at = Counter(first)
        values = accumulate(float(at[step]) for step in steps)
        series.append(Series(name, tuple(steps), tuple(values)))
    return CurvePanel("Rows, first seen and first solved", tuple(series))


def _reward_by_length(groups: Groups) -> CurvePanel | None:
    """Return the mean reward by length, of the first and last third of the steps; None without lengths."""
    means = (_binned(name, pairs) for name, pairs in groups.lengths.items())
    series = tuple(curve for curve in means if curve)
    return CurvePanel("Reward by length", series, across="tokens") if series else None


def _binned(name: str, pairs: Sequence[tuple[int, float]]) -> Series | None:
    """Return means over bins of equal counts of (length, reward), sorted; equal lengths stay together."""
    size = max(FEWEST, math.ceil(len(pairs) / LENGTH_BINS))
    bins: list[list[tuple[int, float]]] = []
    for pair in pairs:
        if not bins or (len(bins[-1]) >= size and bins[-1][-1][0] != pair[0]):
            bins.append([])
        bins[-1].append(pair)
    whole = [bin_ for bin_ in bins if len(bin_) >= FEWEST]
    if len(whole) < 2:
        return None
    middle = tuple(round(fmean(length for length, _ in bin_)) for bin_ in whole)
    means = tuple(fmean(reward for _, reward in bin_) for bin_ in whole)
    reach = [1.96 * pstdev([r for _, r in bin_]) / math.sqrt(len(bin_)) for bin_ in whole]
    low = tuple(mean - by for mean, by in zip(means, reach, strict=True))
    high = tuple(mean + by for mean, by in zip(means, reach, strict=True))
    return Series(name, middle, means, low, high)


# --------------------------------------------------------------------------------------------------
# The report of a run: one offline HTML file and PNG plots, from the run folder alone.


# --------------------------------------------------------------------------------------------------


IMAGE_BYTES = 6_000_000
"""Budget of all embedded images, in characters of their data URIs."""
HERE = Path(__file__).parent
"""The folder of the templates of reports."""


LEADING = ("Reward", "Evaluation")
"""Sections that come right below the first screen, before the galleries."""
CLOSED = ("Update", "Models", "Schedules", "Machines", COLD_START, "More")
"""Sections that a reader opens."""


@dataclass(frozen=True, slots=True)
class ShownSection:
    """A section ready for the template."""

    title: str
    about: str
    drawings: tuple[curves.Drawing, ...]
    constants: tuple[tuple[str, float | None], ...]
    open: bool
    leads: bool


class StoredRows(Mapping[int, Sequence[Row]]):
    """The lines of files by step, read whenever they are asked for: a long run has thousands of files."""

    def __init__(self, paths: Mapping[int, Path]) -> None:
        self._paths = paths

    def __getitem__(self, step: int) -> Sequence[Row]:
        return read_lines(self._paths[step])

    def __iter__(self) -> Iterator[int]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


def build_report(run_dir: Path | str) -> Path:
    """Write report.html and plots/*.png of a run folder, finished or not; return the page's path.

    Raises:
        UserError: the folder holds no run, or one of its files is damaged.
    """
    folder = Path(run_dir)
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder}: expected the folder of a run, got no config.json")
    config = read_json(folder / "config.json")
    evaluations = [read_json(p) for p in run_folder.steps_in(folder / "evals", ".json").values()]
    steps = _lines(run_folder.metrics_path(folder))
    imitated = _lines(run_folder.sft_path(folder))
    rows = StoredRows(run_folder.steps_in(folder / "rollouts", ".jsonl"))
    curve_sections = sections(steps, imitated, evaluations)
    album = Album(run_folder.media_folder(folder), IMAGE_BYTES)
    ends = read_ends(folder)
    shown = galleries(ends, album, rows, alarm_rows(folder))
    groups = read_groups(config, rows)
    if panels := group_section(groups):
        curve_sections.append(panels)
        write_lines(folder / "solved.jsonl", map(asdict, solved_rows(groups)))
    metric = (config.get("evaluation") or {}).get("metric", "")
    computed = fit_panel(metric, Spent.of(config, steps), evaluations)
    curve_sections = with_compute(curve_sections, computed)
    save_plots(folder, curve_sections)
    stages = stretches(config, steps)
    summary, alarms = run_folder.read_summary(folder), alarm_sentences(folder)
    progress = RunFacts.of(config, steps, summary, evaluations=evaluations, alarms=alarms)
    compare_ends(progress, ends, _mean(imitated, scored_demonstrations(progress.metric)))
    cards = shown[0].cards if ends and shown else ()
    fit = computed[1] if computed else None
    tiles = tiles_of(folder, evaluations, steps, stages, fit, album.left_out)
    known = dict(MAIN_COLOUR)
    page = render(
        HERE,
        "template.html",
        "report.js",
        title=config["run"]["name"],
        subtitle=subtitle(config),
        screen=first_screen(config, progress, cards, stages),
        tiles=tiles,
        sections=[show(section, known, stages) for section in curve_sections],
        galleries=shown,
        links=[
            *(s.title for s in curve_sections),
            *(g.title for g in shown),
            "In numbers",
            "Config",
        ],
        images=album.images.values(),
        config=json.dumps(config, indent=2, ensure_ascii=False),
    )
    # Lone surrogates, which JSON can carry and UTF-8 cannot, become question marks.
    return write_bytes(folder / "report.html", page.encode("utf-8", "replace"))


def read_ends(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """Return the samples of the first and the last evaluation, by step."""
    samples = run_folder.steps_in(folder / "evals", ".jsonl")
    return {
        step: read_lines(samples[step])
        for step in sorted({*list(samples)[:1], *list(samples)[-1:]})
    }


def _lines(path: Path) -> list[dict[str, Any]]:
    return read_lines(path) if path.exists() else []


def _mean(lines: Sequence[Mapping[str, Any]], key: str) -> float | None:
    known = [line[key] for line in lines if line.get(key) is not None]
    return fmean(known) if known else None


def with_compute(
    curve_sections: Sequence[CurveSection], computed: tuple[CurvePanel, ComputeFit] | None
) -> list[CurveSection]:
    """Return the sections with the panel of the fit beside the other evaluations."""
    more = (computed[0],) if computed else ()
    return [
        replace(section, panels=(*section.panels, *more))
        if section.title == "Evaluation"
        else section
        for section in curve_sections
    ]


def show(
    section: CurveSection, known: dict[str, int], stages: Sequence[Stretch] = ()
) -> ShownSection:
    """Return a section with its panels drawn; `known` holds the colours of names so far."""
    # A cold start counts steps of its own.
    marked = () if section.title == COLD_START else stages
    return ShownSection(
        section.title,
        section.about,
        tuple(curves.draw(with_words(panel), known, marked) for panel in section.panels),
        section.constants,
        open=section.title not in CLOSED,
        leads=section.title in LEADING,
    )


def subtitle(config: Mapping[str, Any]) -> str:
    """Return what was trained on what, in a line."""
    versions, git = config["versions"], config["git"]
    sources = ", ".join(s["name"] or s["card"] for s in config["data"]["train"])
    parts = [
        config["algorithm"]["name"],
        sources,
        f"seed {config['run']['seed']}",
        f"vlmrl {versions['vlmrl']}",
    ]
    if git:
        parts.append(f"git {git['revision'][:10]}{' with changes' if git['changed'] else ''}")
    return " · ".join(parts)


@dataclass(frozen=True, slots=True)
class Tile:
    """One number."""

    name: str
    value: str
    note: str = ""


def tiles_of(
    folder: Path,
    evaluations: Sequence[Mapping[str, Any]],
    lines: Sequence[Mapping[str, Any]],
    stages: Sequence[Stretch],
    fit: ComputeFit | None,
    left_out: int,
) -> list[Tile]:
    """Return the numbers of a run; `lines` are those of metrics.jsonl, `left_out` counts images."""
    tiles = [*_evaluated(evaluations), *_summed_up(folder), *map(_of_stage, stages)]
    tiles += _of_compute(fit) + _of_ranks(folder, lines)
    if left_out:
        note = "their files are gone, or the page would be too large"
        tiles.append(Tile("images left out", str(left_out), note))
    return tiles


def _evaluated(evaluations: Sequence[Mapping[str, Any]]) -> list[Tile]:
    tiles = []
    if evaluations:
        first, last = evaluations[0], evaluations[-1]
        for name, value in last["metrics"].items():
            if "/" not in name:
                before = first["metrics"].get(name)
                low, high = (number(v) for v in last["intervals"].get(name, (None, None)))
                change = f"{number(before)} → {number(value)}"
                tiles.append(Tile(f"held-out {name}", change, f"95 %: {low} to {high}"))
    return tiles


def _of_stage(stage: Stretch) -> Tile:
    return Tile(
        stage.label, f"reward {number(stage.reward)}", f"steps {stage.first} to {stage.last}"
    )


def _of_compute(fit: ComputeFit | None) -> list[Tile]:
    if fit is None:
        return []
    low, high, middle = number(fit.low), number(fit.high), number(fit.middle, "s")
    note = f"95 %: {low} to {high}; half of the way after {middle}, exponent {number(fit.power)}"
    return [Tile("limit of more compute", number(fit.top), note)]


def _of_ranks(folder: Path, steps: Sequence[Mapping[str, Any]]) -> list[Tile]:
    """Return a tile that names the rank that was slowest most often, where there are several."""
    compared = [line for line in steps if "ranks/work/slowest" in line]
    path = run_folder.ranks_path(folder)
    if not compared or not path.exists():
        return []
    hosts = {int(done): names for done, names in read_json(path).items()}
    by_rank: dict[str, list[float]] = {}
    for line in compared:
        begun = max((done for done in hosts if done < line["step"]), default=min(hosts))
        rank = int(line["ranks/work/slowest"])
        by_rank.setdefault(f"{rank} on {hosts[begun][rank]}", []).append(line["ranks/excess"])
    who, excesses = max(by_rank.items(), key=lambda item: len(item[1]))
    over = number(sum(excesses) / len(excesses), "share")
    note = f"in {len(excesses)} of {len(compared)} steps, by {over} over the median"
    return [Tile("slowest rank", who, note)]


def _summed_up(folder: Path) -> list[Tile]:
    path = folder / "summary.json"
    summary = read_json(path) if path.exists() else {}
    tiles = []
    if "steps" in summary:
        tiles.append(Tile("steps", f"{summary['steps']:,}"))
    if wall := summary.get("wall_seconds"):
        longest = max(wall, key=lambda phase: wall[phase])
        note = f"most of it: {longest} {wall[longest]:.0f} s"
        tiles.append(Tile("wall time", f"{sum(wall.values()):.0f} s", note))
    if peak := summary.get("peak_memory_mb"):
        tiles.append(Tile("peak memory", f"{max(peak.values()):,.0f} MiB"))
    for name in ("dropped", "faulted"):
        if counts := summary.get(name):
            note = ", ".join(f"{reason}: {count}" for reason, count in counts.items())
            tiles.append(Tile(name, str(sum(counts.values())), note))
    return tiles
