"""The pages of `vlmrl watch`: one run, and all runs; each part is rendered when it is looked at and new.

The parts are those of the report, by the same templates: text of models and data is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from markupsafe import Markup

from vlmrl.features.report.first_screen import describe, first_screen
from vlmrl.features.report.gallery import FacetChoice, current_gallery, evaluation_cards
from vlmrl.features.report.growing import Across, Series, cold_start_parts
from vlmrl.features.report.live_run import LiveRun
from vlmrl.features.report.page import (
    HERE,
    LEADING,
    read_ends,
    show,
    subtitle,
    tiles_of,
    with_compute,
)
from vlmrl.features.report.row_pages import run_address
from vlmrl.features.report.series import MAIN_COLOUR, CurvePanel, CurveSection, sections
from vlmrl.pages.media import Album
from vlmrl.pages.render import number, render, templates
from vlmrl.runs import run_folder
from vlmrl.runs.metrics import Unit, find
from vlmrl.runs.output.words import duration
from vlmrl.system.files import read_lines

IMAGE_BYTES = 3_000_000
"""Budget of the images of one part, in characters of their data URIs."""
SCRIPTS = ("charts.js", "report.js", "watch.js")
MAX_COMPARED = 8
"""Runs on one pair of axes: there are as many colours."""
SAID: dict[Across, str] = {
    "step": "their steps",
    "samples": "completions sampled",
    "seconds": "wall seconds of their steps",
}
"""What runs are compared by."""


def newer_parts(
    run: LiveRun, seen: Mapping[str, str], choice: FacetChoice
) -> dict[str, tuple[str, str]]:
    """Return for each part whose key is no longer the one seen its new key, and its HTML.

    Parts are `status`, `sentence`, `curve`, `pairs`, `layout` (the places of the others),
    `rollouts` (those of the choice) and `numbers`; any other name is the title of a section.
    """
    parts, state, stages, fit = parts_module(), run.state(), run.stages, run.fit()
    shown = with_compute(sections(run.metrics, run.imitation, run.results), fit)
    titles = [section.title for section in shown]
    evaluated = (run.evaluated, fit and fit[1], len(stages))

    def numbers() -> str:
        lines = run.metrics.lines
        return parts.tiles(tiles_of(run.folder, run.results, lines, stages, fit and fit[1], 0))

    def layout() -> str:
        leading = [title for title in titles if title in LEADING]
        return parts.layout(leading, [title for title in titles if title not in LEADING])

    def curve() -> str:
        return parts.main_curve(first_screen(run.config, run.progress(), (), stages))

    makers: dict[str, tuple[Any, Callable[[], str]]] = {
        "status": ((state, run.mistake), lambda: parts.status(say_state(state), run.mistake)),
        "sentence": (run.version, lambda: parts.sentence(describe(run.progress()))),
        "curve": (evaluated, curve),
        "pairs": (run.evaluated, lambda: _pairs(run)),
        "rollouts": ((run.rolled, choice), lambda: _rollouts(run, choice)),
        "numbers": (evaluated, numbers),
        "layout": (titles, layout),
    }
    for section in shown:

        def draw(section: CurveSection = section) -> str:
            marks = stages, cold_start_parts(run.config)
            return parts.section(show(section, dict(MAIN_COLOUR), *marks))

        version = evaluated if section.title == "Evaluation" else run.version
        makers[section.title] = (version, draw)
    newer = {}
    for name in makers.keys() & seen.keys():
        made_of, make = makers[name]
        # The hash of a text is another one in each process: after a restart all parts are new.
        key = f"{abs(hash(repr(made_of))):x}"
        if seen[name] != key:
            newer[name] = (key, str(make()))
    return newer


def _pairs(run: LiveRun) -> str:
    album = Album(run_folder.media_folder(run.folder), IMAGE_BYTES, prefix="p")
    cards = evaluation_cards(read_ends(run.folder), album)
    pairs = parts_module().pairs(first_screen(run.config, run.progress(), cards))
    return _embed(album) + cast("Markup", pairs)


def _rollouts(run: LiveRun, choice: FacetChoice) -> str:
    if run.rollouts is None:
        return ""
    step, path = run.rollouts
    album = Album(run_folder.media_folder(run.folder), IMAGE_BYTES)
    rows = run_address(run.folder.absolute().name)
    gallery = current_gallery(step, read_lines(path), choice, album, rows)
    return _embed(album) + cast("Markup", parts_module().gallery(gallery))


def _embed(album: Album) -> Markup:
    media = templates(HERE).get_template("media.html").module
    return cast("Markup", cast("Any", media).album(album.images.values()))


def parts_module() -> Any:
    """Return the macros of the parts."""
    return templates(HERE).get_template("parts.html").module


def say_state(state: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the numbers of a run's state as a reader says them: name and value."""
    steps = f"{state['steps']:,} of {state['planned']:,}"
    if state["running"] and not state["steps"] and state["imitated"]:
        steps = f"cold start, step {state['imitated']:,}"
    how = "running" if state["running"] else "finished" if state["ended"] else "not running"
    lines = [(how, steps)]
    units: tuple[tuple[str, str, Unit], ...] = (
        ("reward", "reward", ""),
        ("samples a second", "samples_s", ""),
        ("a step", "step_s", "s"),
    )
    lines += [
        (name, number(state[key], unit)) for name, key, unit in units if state[key] is not None
    ]
    if state["left_s"] is not None:
        lines.append(("time left", duration(state["left_s"])))
    if state["memory_mb"] is not None:
        lines.append(("memory", _bytes(state["memory_mb"])))
    if state["gpu_memory_mb"] is not None:
        of = f" of {_bytes(total)}" if (total := state["gpu_memory_total_mb"]) else ""
        lines.append(("GPU memory", f"{_bytes(state['gpu_memory_mb'])}{of}"))
    if state["gpu_use"] is not None:
        lines.append(("GPU use", number(state["gpu_use"], "share")))
    if state["damaged"]:
        lines.append(("unreadable lines", str(state["damaged"])))
    return lines


def _bytes(mebibytes: float) -> str:
    return f"{mebibytes:,.0f} MiB" if mebibytes < 10_000 else f"{mebibytes / 1024:,.1f} GiB"


def warm_up() -> None:
    """Load what the first page would wait for: the templates, and the glossary with its parts."""
    parts_module()
    find("step")


def compared(runs: Mapping[str, LiveRun], across: Across = "step") -> str:
    """Return the curves of at most `MAX_COMPARED` runs by their steps, samples or seconds."""
    held_out: dict[str, list[Series]] = {}
    trained = []
    for name, run in list(runs.items())[:MAX_COMPARED]:
        if known := run.held_out():
            held_out.setdefault(run.metric, []).append(_series(name, run, known, across))
        if (reward := run.metrics.curve("reward/mean")).steps:
            points = list(zip(reward.steps, reward.values, strict=True))
            trained.append(_series(name, run, points, across))
    panels = [
        CurvePanel(f"Held-out {metric}", tuple(curves), across=across)
        for metric, curves in held_out.items()
    ]
    panels += [CurvePanel("Training reward", tuple(trained), across=across)] if trained else []
    about = f"Runs on one pair of axes, by {SAID[across]}; a name keeps its colour."
    section = CurveSection("Compared", about, tuple(panels))
    return str(parts_module().section(show(section, dict(MAIN_COLOUR))))


def _series(
    name: str, run: LiveRun, points: Sequence[tuple[int, float | None]], across: Across
) -> Series:
    """Return points by step as a curve along an axis; of those at one place only the last."""
    placed = {run.metrics.place(step, across, run.batch): value for step, value in points}
    return Series(name, tuple(placed), tuple(placed.values()))


def run_page(name: str, run: LiveRun | None, alone: bool) -> str:
    """Return the page of one run; without the way to the others if it is watched `alone`.

    That of a run that has not begun (None) asks until there is one, and then loads that.
    """
    waiting = "This run has not begun, or is gone. Its page comes up once there is one."
    return render(
        HERE,
        "watch_run.html",
        *SCRIPTS,
        title=run.config["run"]["name"] if run else name,
        subtitle=subtitle(run.config) if run else waiting,
        address=f"{run_address(name)}/changes",
        rows=f"{run_address(name)}/rows",
        alone=alone and run is not None,
        waiting=run is None,
    )


def runs_page(starts: bool = False) -> str:
    """Return the page of all runs; with the way to the one that starts runs, if there is one."""
    return render(HERE, "watch_runs.html", *SCRIPTS, address="/changes", axes=SAID, starts=starts)


def runs_table(runs: Mapping[str, LiveRun], chosen: Sequence[str]) -> str:
    """Return the table of all runs; the chosen ones are those that are compared."""
    rows = []
    for name, run in runs.items():
        known = [number(value) for _, value in run.held_out()]
        held_out = f"{run.metric} {known[0]} → {known[-1]}" if known else ""
        state = say_state(run.state()) if run.config else []
        rows.append({"name": name, "state": state, "held_out": held_out, "mistake": run.mistake})
    return str(parts_module().runs(rows, chosen))
