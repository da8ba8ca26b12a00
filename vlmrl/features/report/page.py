"""Build the report's page: put everything from the run folder together and render it.

The page loads nothing: images are data URIs, style and script are inline, and its content policy
lets no other script run. Text from models and data is escaped by jinja2's autoescape.
"""

from __future__ import annotations

import io
import json
import math
from collections import Counter, UserDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from vlmrl.errors import UserError
from vlmrl.features.report import curves
from vlmrl.features.report.compute_fit import ComputeFit, fit_panel
from vlmrl.features.report.first_screen import RunFacts, compare_ends, first_screen
from vlmrl.features.report.gallery import alarm_rows, alarm_sentences, galleries
from vlmrl.features.report.growing import (
    Series,
    StepLines,
    Stretch,
    cold_start_parts,
    mean_of,
    stretches,
)
from vlmrl.features.report.held_out import scored_demonstrations
from vlmrl.features.report.series import (
    COLD_START,
    MAIN_COLOUR,
    CurvePanel,
    CurveSection,
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
PALETTE = "#2563eb #d9480f #0d9467 #b5369c #b7860b #0e8fb3 #7048e8 #64748b".split()
COLUMNS = 3


def save_plots(folder: Path, sections: list[CurveSection]) -> None:
    """Write one PNG for each section into plots/, named after it, e.g. plots/reward.png."""
    known = dict(MAIN_COLOUR)
    for section in sections:
        if not section.panels:
            continue
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
        name = section.title.lower().replace(" ", "_")
        write_bytes(folder / "plots" / f"{name}.png", out.getvalue())


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


class Solved(NamedTuple):
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
    evaluation = config.get("evaluation") or {}
    metric = str(evaluation.get("metric", "reward")).rpartition("/")[2]
    threshold = float(evaluation.get("pass_threshold", 0.5))
    steps = sorted(rows)
    third = max(1, len(steps) // 3) if len(steps) > 1 else 0
    thirds = {"first third of the steps": steps[:third], "last third": steps[-third:][:third]}
    rates, lengths = [], {name: list[tuple[int, float]]() for name in thirds}
    for step in steps:
        groups = rows[step]
        for group in groups:
            scores = [_score(completion, metric) for completion in group["completions"]]
            known = [score for score in scores if score is not None]
            if known:
                rate = sum(score >= threshold for score in known) / len(known)
                rates.append((step, (str(group["source"]), str(group["id"])), rate))
        pairs = [
            (int(completion["tokens"]), float(completion["reward"]))
            for group in groups
            for completion in group["completions"]
            if completion["valid"] and completion["reward"] is not None
        ]
        for name, chosen in thirds.items():
            lengths[name] += pairs if step in chosen else []
    return Groups(metric, threshold, tuple(rates), {k: sorted(v) for k, v in lengths.items()})


def _score(completion: Mapping[str, Any], metric: str) -> float | None:
    """Return a completion's score by the metric, its reward where it has none such; None: it is masked."""
    if not completion["valid"]:
        return None
    verdict = completion["verdicts"].get(metric)
    score = completion["reward"] if verdict is None else verdict["score"]
    return None if score is None else float(score)


def group_section(groups: Groups) -> CurveSection | None:
    """Return the panels of the rollout files; None if nothing in them has a score."""
    if not groups.rates:
        return None
    steps = tuple(sorted({step for step, _, _ in groups.rates}))
    counts = {step: [0] * len(BANDS) for step in steps}
    for step, _, rate in groups.rates:
        counts[step][0 if rate == 0 else 3 if rate == 1 else 1 if rate < 0.5 else 2] += 1
    shares = tuple(
        Series(name, steps, tuple(counts[step][band] / sum(counts[step]) for step in steps))
        for band, name in enumerate(BANDS)
    )
    firsts = zip(*solved_rows(groups), strict=True)
    solved = []
    for name, first in zip(
        ("seen", "more than half right", "all right"), [*firsts][2:], strict=True
    ):
        at = Counter(first)
        solved.append(Series(name, steps, tuple(accumulate(float(at[step]) for step in steps))))
    panels = [
        CurvePanel("Groups by how many completions pass", shares, "share", stacked=True),
        CurvePanel("Rows, first seen and first solved", tuple(solved)),
    ]
    binned = (_binned(name, pairs) for name, pairs in groups.lengths.items())
    if by_length := tuple(curve for curve in binned if curve):
        panels.append(CurvePanel("Reward by length", by_length, across="tokens"))
    about = (
        f"From the steps in rollouts/: a completion passes when its {groups.metric} is at least "
        f"{groups.threshold:g}; rows are counted from the first such group on. By length: means with "
        "95 % intervals."
    )
    return CurveSection(TITLE, about, tuple(panels))


def solved_rows(groups: Groups) -> list[Solved]:
    """Return each row of the rollout files in the order in which it was first seen."""
    rows: dict[tuple[str, str], Solved] = {}
    for step, key, rate in groups.rates:
        row = rows.get(key) or Solved(*key, step, None, None)
        if rate > 0.5 and row.more_than_half is None:
            row = row._replace(more_than_half=step)
        if rate == 1 and row.all is None:
            row = row._replace(all=step)
        rows[key] = row
    return list(rows.values())


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


class StoredRows(UserDict[int, Any]):
    """Files by step; their lines are read whenever they are asked for: a long run has thousands of files."""

    def __getitem__(self, step: int) -> Sequence[Row]:
        return read_lines(self.data[step])


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
    metrics, imitation = (
        StepLines(read_lines(path) if path.exists() else ())
        for path in (run_folder.metrics_path(folder), run_folder.sft_path(folder))
    )
    rows = StoredRows(run_folder.steps_in(folder / "rollouts", ".jsonl"))
    curve_sections = sections(metrics, imitation, evaluations)
    album = Album(run_folder.media_folder(folder), IMAGE_BYTES)
    ends = read_ends(folder)
    shown = galleries(ends, album, rows, alarm_rows(folder))
    groups = read_groups(config, rows)
    if panels := group_section(groups):
        curve_sections.append(panels)
        write_lines(folder / "solved.jsonl", (row._asdict() for row in solved_rows(groups)))
    metric = (config.get("evaluation") or {}).get("metric") or "reward"
    computed = fit_panel(metric, metrics, evaluations)
    curve_sections = with_compute(curve_sections, computed)
    save_plots(folder, curve_sections)
    stages, parts = stretches(config, metrics.lines), cold_start_parts(config)
    demonstrated = mean_of(imitation.lines, scored_demonstrations(metric))
    progress = RunFacts.of(
        config,
        metrics,
        ended=_summary(folder).get("steps", -1) >= (metrics.steps or [0])[-1],
        evaluations=evaluations,
        alarms=alarm_sentences(folder),
        **compare_ends(metric, ends, demonstrated),
    )
    cards = shown[0].cards if ends and shown else ()
    fit = computed and computed[1]
    known = dict(MAIN_COLOUR)
    page = render(
        HERE,
        "template.html",
        "charts.js",
        "report.js",
        title=config["run"]["name"],
        subtitle=subtitle(config),
        screen=first_screen(config, progress, cards, stages),
        tiles=tiles_of(folder, evaluations, metrics.lines, stages, fit, album.left_out),
        sections=[show(section, known, stages, parts) for section in curve_sections],
        galleries=shown,
        links=[s.title for s in curve_sections]
        + [*(g.title for g in shown), "In numbers", "Config"],
        images=album.images.values(),
        config=json.dumps(config, indent=2, ensure_ascii=False),
        starts=list(start_lines(folder)),
    )
    # Lone surrogates, which JSON can carry and UTF-8 cannot, become question marks.
    return write_bytes(folder / "report.html", page.encode("utf-8", "replace"))


def start_lines(folder: Path) -> Iterator[str]:
    """Yield a sentence for each start of a run after the first: when, from where, and what had changed."""
    for start in run_folder.read_starts(folder)[1:]:
        changed = "; ".join(start["changed"]) or "nothing had changed"
        done = "the cold start" if start["phase"] == "sft" else f"step {start['step']}"
        yield f"Resumed after {done}, {start['time']}: {changed}."


def read_ends(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """Return the samples of the first and the last evaluation, by step."""
    samples = run_folder.steps_in(folder / "evals", ".jsonl")
    return {
        step: read_lines(samples[step])
        for step in sorted({*list(samples)[:1], *list(samples)[-1:]})
    }


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
    section: CurveSection,
    known: dict[str, int],
    stages: Sequence[Stretch] = (),
    parts: Sequence[Stretch] = (),
) -> ShownSection:
    """Return a section with its panels drawn; `known` holds the colours of names so far.

    A cold start counts steps of its own: of what marks curves it has its `parts`, the others the stages.
    """
    marked = parts if section.title == COLD_START else stages
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


class Tile(NamedTuple):
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
    tiles = []
    for name, value in evaluations[-1]["metrics"].items() if evaluations else ():
        if "/" not in name:
            before = evaluations[0]["metrics"].get(name)
            low, high = map(number, evaluations[-1]["intervals"].get(name, (None, None)))
            change = f"{number(before)} → {number(value)}"
            tiles.append(Tile(f"held-out {name}", change, f"95 %: {low} to {high}"))
    tiles += _summed_up(_summary(folder))
    for stage in stages:
        steps = f"steps {stage.first} to {stage.last}"
        tiles.append(Tile(stage.label, f"reward {number(stage.reward)}", steps))
    if fit:
        low, high, middle = number(fit.low), number(fit.high), number(fit.middle, "s")
        note = (
            f"95 %: {low} to {high}; half of the way after {middle}, exponent {number(fit.power)}"
        )
        tiles.append(Tile("limit of more compute", number(fit.top), note))
    tiles += _of_ranks(folder, lines)
    if left_out:
        note = "their files are gone, or the page would be too large"
        tiles.append(Tile("images left out", str(left_out), note))
    return tiles


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
    over = number(fmean(excesses), "share")
    note = f"in {len(excesses)} of {len(compared)} steps, by {over} over the median"
    return [Tile("slowest rank", who, note)]


def _summary(folder: Path) -> dict[str, Any]:
    return run_folder.read_summary(folder) or {}


def _summed_up(summary: Mapping[str, Any]) -> Iterator[Tile]:
    if "steps" in summary:
        yield Tile("steps", f"{summary['steps']:,}")
    if wall := summary.get("wall_seconds"):
        longest = max(wall, key=lambda phase: wall[phase])
        note = f"most of it: {longest} {wall[longest]:.0f} s"
        yield Tile("wall time", f"{sum(wall.values()):.0f} s", note)
    if peak := summary.get("peak_memory_mb"):
        yield Tile("peak memory", f"{max(peak.values()):,.0f} MiB")
    for name in ("dropped", "faulted"):
        if counts := summary.get(name):
            note = ", ".join(f"{reason}: {count}" for reason, count in counts.items())
            yield Tile(name, str(sum(counts.values())), note)
