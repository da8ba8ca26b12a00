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
from vlmrl.pages.render import render
from vlmrl.report import drawing
from vlmrl.report.cards.galleries import galleries
from vlmrl.report.compute_fit import ComputeFit, fit_panel
from vlmrl.report.curves.spent import Spent
from vlmrl.report.groups import group_section, read_groups, solved_rows
from vlmrl.report.held_out.first_screen import compare_ends, first_screen
from vlmrl.report.held_out.levels import scored_demonstrations
from vlmrl.report.loopholes.alarms import alarm_rows, alarm_sentences
from vlmrl.report.plots import save_plots
from vlmrl.report.series import (
    COLD_START,
    MAIN_COLOUR,
    CurvePanel,
    CurveSection,
    sections,
    with_words,
)
from vlmrl.report.stages import Stretch, stretches
from vlmrl.report.words.outcome import RunFacts
from vlmrl.report.words.tiles import tiles_of
from vlmrl.runs import run_folder
from vlmrl.runs.rollout_rows import Row
from vlmrl.system.atomic_files import read_json, read_lines, write_bytes, write_lines

__all__ = [
    "LEADING",
    "build_report",
    "read_ends",
    "show",
    "subtitle",
    "with_compute",
]

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
