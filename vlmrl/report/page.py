"""Build the report's page: put everything from the run folder together and render it.

The page loads nothing: images are data URIs, style and script are inline, and its content policy
lets no other script run. Text from models and data is escaped by jinja2's autoescape.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from vlmrl.errors import UserError
from vlmrl.pages.media import Album
from vlmrl.pages.render import number, render
from vlmrl.report import drawing
from vlmrl.report.compute_fit import ComputeFit, fit_panel
from vlmrl.report.first_screen import RunFacts, compare_ends, first_screen
from vlmrl.report.gallery import alarm_rows, alarm_sentences, galleries
from vlmrl.report.groups import group_section, read_groups, solved_rows
from vlmrl.report.growing import Spent, Stretch, stretches
from vlmrl.report.held_out import scored_demonstrations
from vlmrl.report.plots import save_plots
from vlmrl.report.series import (
    COLD_START,
    MAIN_COLOUR,
    CurvePanel,
    CurveSection,
    sections,
    with_words,
)
from vlmrl.runs import run_folder
from vlmrl.runs.rollout_rows import Row
from vlmrl.system.atomic_files import read_json, read_lines, write_bytes, write_lines

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
    drawings: tuple[drawing.Drawing, ...]
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
        raise UserError(f"{folder}: not a run folder (it has no config.json)")
    config = read_json(folder / "config.json")
    evaluations = [read_json(p) for p in run_folder.steps_in(folder / "evals", ".json").values()]
    steps = _lines(run_folder.metrics_path(folder))
    imitated = _lines(run_folder.sft_path(folder))
    rows = StoredRows(run_folder.steps_in(folder / "rollouts", ".jsonl"))
    found = sections(steps, imitated, evaluations)
    album = Album(run_folder.media_folder(folder), IMAGE_BYTES)
    ends = read_ends(folder)
    shown = galleries(ends, album, rows, alarm_rows(folder))
    groups = read_groups(config, rows)
    if panels := group_section(groups):
        found.append(panels)
        write_lines(folder / "solved.jsonl", map(asdict, solved_rows(groups)))
    metric = (config.get("evaluation") or {}).get("metric", "")
    computed = fit_panel(metric, Spent.of(config, steps), evaluations)
    found = with_compute(found, computed)
    save_plots(folder, found)
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
        sections=[show(section, known, stages) for section in found],
        galleries=shown,
        links=[*(s.title for s in found), *(g.title for g in shown), "In numbers", "Config"],
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
    found: Sequence[CurveSection], computed: tuple[CurvePanel, ComputeFit] | None
) -> list[CurveSection]:
    """Return the sections with the panel of the fit beside the other evaluations."""
    more = (computed[0],) if computed else ()
    return [
        replace(section, panels=(*section.panels, *more))
        if section.title == "Evaluation"
        else section
        for section in found
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
        tuple(drawing.draw(with_words(panel), known, marked) for panel in section.panels),
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
    found = [*_evaluated(evaluations), *_summed_up(folder), *map(_of_stage, stages)]
    found += _of_compute(fit) + _of_ranks(folder, lines)
    if left_out:
        note = "their files are gone, or the page would be too large"
        found.append(Tile("images left out", str(left_out), note))
    return found


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
    found: dict[str, list[float]] = {}
    for line in compared:
        begun = max((done for done in hosts if done < line["step"]), default=min(hosts))
        rank = int(line["ranks/work/slowest"])
        found.setdefault(f"{rank} on {hosts[begun][rank]}", []).append(line["ranks/excess"])
    who, excesses = max(found.items(), key=lambda item: len(item[1]))
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
