"""The pages of `vlmrl watch`: one run, and all runs; each part is rendered when it is looked at and new.

The parts are those of the report, by the same templates: text of models and data is escaped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from markupsafe import Markup

from vlmrl.features.report.first_screen import describe, first_screen
from vlmrl.features.report.gallery import FacetChoice, current_gallery, evaluation_cards
from vlmrl.features.report.growing import Across
from vlmrl.features.report.live_run import LaterFit, LiveRun, State
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
from vlmrl.features.report.series import (
    ABOUT,
    MAIN_COLOUR,
    CurvePanel,
    CurveSection,
    Series,
    sections_of,
)
from vlmrl.pages.media import Album
from vlmrl.pages.render import number, render, templates
from vlmrl.runs import run_folder
from vlmrl.runs.metrics import Unit, find
from vlmrl.runs.output.words import duration
from vlmrl.system.files import read_lines

IMAGE_BYTES = 3_000_000
"""Budget of the images of one part, in characters of their data URIs."""
EVALUATION = "Evaluation"


@dataclass
class LiveParts:
    """The parts of one run's page by name, with what they were last made of."""

    run: LiveRun
    fit: LaterFit = field(default_factory=LaterFit)
    _made: dict[str, tuple[Any, str]] = field(default_factory=dict)
    _evaluated: tuple[int, list[CurveSection]] = field(default_factory=lambda: (-1, []))

    def newer(
        self, seen: Mapping[str, str], choice: FacetChoice | None = None
    ) -> dict[str, tuple[str, str]]:
        """Return for each part whose key is no longer the one seen its new key, and its HTML.

        Parts are `status`, `sentence`, `curve`, `pairs`, `layout` (the places of the others),
        `rollouts` (those of the choice) and `numbers`; any other name is the title of a section.
        """
        self.fit.follow(self.run)
        choice, evaluated = choice or FacetChoice(), (self.run.evaluated, self.fit.version)
        state, stages = self.run.state(), len(self.run.stages)
        sections = {section.title: section for section in self._sections()}
        makers: dict[str, tuple[Any, Callable[[], str]]] = {
            "status": (state, lambda: self._status(state)),
            "sentence": (self.run.version, self._sentence),
            "curve": ((self.run.evaluated, stages), self._curve),
            "pairs": (self.run.evaluated, self._pairs),
            "rollouts": ((self.run.rolled, choice), lambda: self._rollouts(choice)),
            "numbers": ((evaluated, stages), self._numbers),
            "layout": (list(sections), lambda: self._layout(list(sections))),
        }
        for title, section in sections.items():
            version = (*evaluated, stages) if title == EVALUATION else self.run.version
            makers[title] = (version, functools.partial(self._section, section))
        newer = {}
        for name, (made_of, make) in makers.items():
            if name not in seen:
                continue
            # The hash of a text is another one in each process: after a restart all parts are new.
            key = f"{abs(hash(repr(made_of))):x}"
            if seen[name] != key:
                if self._made.get(name, ("", ""))[0] != key:
                    self._made[name] = (key, make())
                newer[name] = self._made[name]
        return newer

    def _status(self, state: State) -> str:
        return str(parts_module().status(say_state(state), self.run.mistake))

    def _sentence(self) -> str:
        return str(parts_module().sentence(describe(self.run.progress())))

    def _curve(self) -> str:
        screen = first_screen(self.run.config, self.run.progress(), (), self.run.stages)
        return str(parts_module().main_curve(screen))

    def _pairs(self) -> str:
        album = Album(run_folder.media_folder(self.run.folder), IMAGE_BYTES, prefix="p")
        cards = evaluation_cards(read_ends(self.run.folder), album)
        screen = first_screen(self.run.config, self.run.progress(), cards)
        return str(_embed(album) + parts_module().pairs(screen))

    def _numbers(self) -> str:
        computed = self.fit.result and self.fit.result[1]
        lines = list(self.run.last_lines)
        tiles = tiles_of(self.run.folder, self.run.results(), lines, self.run.stages, computed, 0)
        return str(parts_module().tiles(tiles))

    def _rollouts(self, choice: FacetChoice) -> str:
        if self.run.rollouts is None:
            return ""
        step, path = self.run.rollouts
        album = Album(run_folder.media_folder(self.run.folder), IMAGE_BYTES)
        rows = run_address(self.run.folder.absolute().name)
        gallery = current_gallery(step, read_lines(path), choice, album)
        linked = replace(gallery, rows=rows)
        return str(_embed(album) + parts_module().gallery(linked))

    def _layout(self, titles: Sequence[str]) -> str:
        leading = [title for title in titles if title in LEADING]
        return str(parts_module().layout(leading, [t for t in titles if t not in LEADING]))

    def _sections(self) -> list[CurveSection]:
        """Return the sections in the order of the page; that of evaluations is kept until there are more."""
        if self._evaluated[0] != self.run.evaluated:
            self._evaluated = (self.run.evaluated, sections_of({}, {}, self.run.results()))
        sections = sections_of(self.run.curves.series(), self.run.imitation.series(), ())
        evaluated = with_compute(self._evaluated[1], self.fit.result)
        return sorted([*sections, *evaluated], key=lambda section: list(ABOUT).index(section.title))

    def _section(self, section: CurveSection) -> str:
        return str(parts_module().section(show(section, dict(MAIN_COLOUR), self.run.stages)))


def say_state(state: State) -> list[tuple[str, str]]:
    """Return the numbers of a run's state as a reader says them: name and value."""
    steps = f"{state['steps']:,} of {state['planned']:,}"
    if state["running"] and not state["steps"] and state["imitated"]:
        steps = f"cold start, step {state['imitated']:,}"
    lines = [("running" if state["running"] else "not running", steps)]
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


def table(rows: Sequence[Mapping[str, Any]], chosen: Sequence[str]) -> str:
    """Return the table of all runs; the chosen ones are those that are compared."""
    return str(parts_module().runs(rows, chosen))


def warm_up() -> None:
    """Load what the first page would wait for: the templates, and the glossary with its parts."""
    parts_module()
    find("step")


def _embed(album: Album) -> Markup:
    media = templates(HERE).get_template("media.html").module
    return Markup(cast("Any", media).album(album.images.values()))


def parts_module() -> Any:
    """Return the macros of the parts."""
    return templates(HERE).get_template("parts.html").module


def _bytes(mebibytes: float) -> str:
    return f"{mebibytes:,.0f} MiB" if mebibytes < 10_000 else f"{mebibytes / 1024:,.1f} GiB"


MAX_COMPARED = 8
"""Runs on one pair of axes: there are as many colours."""
SAID: dict[Across, str] = {
    "step": "their steps",
    "samples": "completions sampled",
    "seconds": "wall seconds of their steps",
}
"""What runs are compared by."""


def compared(runs: Mapping[str, LiveRun], across: Across = "step") -> str:
    """Return the curves of at most `MAX_COMPARED` runs by their steps, samples or seconds."""
    chosen = dict(list(runs.items())[:MAX_COMPARED])
    held_out: dict[str, list[Series]] = {}
    trained = []
    for name, run in chosen.items():
        if known := run.held_out():
            held_out.setdefault(run.metric, []).append(_series(name, run, known, across))
        reward = run.curves.one("reward/mean")
        if reward is not None:
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
    placed = {run.spent.place(step, across): value for step, value in points}
    return Series(name, tuple(placed), tuple(placed.values()))


SCRIPTS = ("report.js", "watch.js")


def run_page(name: str, run: LiveRun, alone: bool) -> str:
    """Return the page of one run; without the way to the others if it is watched alone."""
    return render(
        HERE,
        "watch_run.html",
        *SCRIPTS,
        title=run.config["run"]["name"],
        subtitle=subtitle(run.config),
        address=f"{run_address(name)}/changes",
        rows=f"{run_address(name)}/rows",
        alone=alone,
        waiting=False,
    )


def waiting_page(name: str) -> str:
    """Return the page of a run that has not begun: it asks until there is one, and then loads that."""
    return render(
        HERE,
        "watch_run.html",
        *SCRIPTS,
        title=name,
        subtitle="This run has not begun, or is gone. Its page comes up once there is one.",
        address=f"{run_address(name)}/changes",
        alone=False,
        waiting=True,
    )


def runs_page() -> str:
    """Return the page of all runs."""
    return render(HERE, "watch_runs.html", *SCRIPTS, address="/changes", axes=SAID)


def list_rows(runs: Mapping[str, LiveRun]) -> list[dict[str, Any]]:
    """Return what the table of runs says of each."""
    rows: list[dict[str, Any]] = []
    for name, run in runs.items():
        if not run.config:
            rows.append({"name": name, "state": [], "held_out": "", "mistake": run.mistake})
            continue
        known = [value for _, value in run.held_out()]
        held_out = f"{run.metric} {number(known[0])} → {number(known[-1])}" if known else ""
        rows.append(
            {
                "name": name,
                "state": say_state(run.state()),
                "held_out": held_out,
                "mistake": run.mistake,
            }
        )
    return rows
