"""Build the report's page: put everything from the run folder together and render it.

The page loads nothing: images are data URIs, style and script are inline, and its content policy
lets no other script run. Text from models and data is escaped by jinja2's autoescape.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from vlmrl.errors import UserError
from vlmrl.report import drawing
from vlmrl.report.compute_fit import ComputeFit, fit_panel
from vlmrl.report.gallery import Card, evaluation_cards, rollout_cards
from vlmrl.report.groups import group_section, solved_rows
from vlmrl.report.media import Album
from vlmrl.report.plots import save_plots
from vlmrl.report.series import COLD_START, MAIN_COLOUR, Panel, Section, sections
from vlmrl.report.stages import Stretch, stretches
from vlmrl.runs import run_folder
from vlmrl.runs.complaints import complain_of_last
from vlmrl.system.atomic_files import read_json, read_lines, write_bytes, write_lines

__all__ = ["build_report", "render"]

IMAGE_BYTES = 12_000_000
"""Budget of all embedded images, in characters of their data URIs."""
HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Tile:
    """One number at the top of the page."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Gallery:
    """Cards under one heading, with the values they can be filtered by; `keys` name the drawn colours."""

    kind: str
    title: str
    about: str
    keys: tuple[str, ...]
    cards: tuple[Card, ...]
    sources: tuple[str, ...]
    steps: tuple[int, ...]


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
    rollouts = run_folder.steps_in(folder / "rollouts", ".jsonl")
    rows = {step: read_lines(path) for step, path in rollouts.items()}
    found = sections(steps, _lines(run_folder.sft_path(folder)), evaluations)
    album = Album(run_folder.media_folder(folder), IMAGE_BYTES)
    galleries = _galleries(folder, album, rows)
    if groups := group_section(config, rows):
        found.append(groups)
        write_lines(folder / "solved.jsonl", map(asdict, solved_rows(config, rows)))
    computed = fit_panel((config.get("evaluation") or {}).get("metric", ""), steps, evaluations)
    found = _with_compute(found, computed)
    save_plots(folder, found)
    stages = stretches(config, steps)
    tiles = _tiles(folder, evaluations) + _stage_tiles(stages)
    tiles += _compute_tiles(computed) + _rank_tiles(folder, steps)
    if album.left_out:
        note = "their files are gone, or the page would be too large"
        tiles.append(Tile("images left out", str(album.left_out), note))
    page = _render(config, complain_of_last(steps), tiles, found, galleries, album, stages)
    # Lone surrogates, which JSON can carry and UTF-8 cannot, become question marks.
    return write_bytes(folder / "report.html", page.encode("utf-8", "replace"))


def _lines(path: Path) -> list[dict[str, Any]]:
    return read_lines(path) if path.exists() else []


def _galleries(
    folder: Path, album: Album, rows: Mapping[int, Sequence[dict[str, Any]]]
) -> list[Gallery]:
    samples = run_folder.steps_in(folder / "evals", ".jsonl")
    ends = {step: read_lines(samples[step]) for step in {*list(samples)[:1], *list(samples)[-1:]}}
    held_out = _gallery(
        "pairs",
        "Held out",
        "The same held-out samples as the first and the last evaluated policy answered them, "
        "greedily; chosen by position, not by result.",
        tuple(f"step {step}" for step in sorted(ends)),
        evaluation_cards(ends, album),
    )
    trained = _gallery(
        "groups",
        "Training groups",
        "Prompts with all their completions. Point at a completion to see its boxes alone, "
        "open it for its thought, its verdicts and their notes.",
        ("predicted",),
        rollout_cards(rows, album),
    )
    return [gallery for gallery in (held_out, trained) if gallery.cards]


def _gallery(
    kind: str, title: str, about: str, keys: tuple[str, ...], cards: Sequence[Card]
) -> Gallery:
    sources = tuple(sorted({card.source for card in cards}))
    steps = tuple(sorted({card.step for card in cards}, reverse=True))
    return Gallery(kind, title, about, keys, tuple(cards), sources, steps)


def _tiles(folder: Path, evaluations: Sequence[Mapping[str, Any]]) -> list[Tile]:
    tiles = []
    if evaluations:
        first, last = evaluations[0], evaluations[-1]
        for name, value in last["metrics"].items():
            if "/" not in name:
                before = first["metrics"].get(name)
                interval = last["intervals"].get(name, (None, None))
                low, high = (drawing.said(v) for v in interval)
                change = f"{drawing.said(before)} → {drawing.said(value)}"
                tiles.append(Tile(f"held-out {name}", change, f"95 %: {low} to {high}"))
    path = folder / "summary.json"
    return tiles + (_summary_tiles(read_json(path)) if path.exists() else [])


def _stage_tiles(stages: Sequence[Stretch]) -> list[Tile]:
    return [
        Tile(
            stage.label,
            f"reward {drawing.said(stage.reward)}",
            f"steps {stage.first} to {stage.last}",
        )
        for stage in stages
    ]


def _with_compute(
    found: Sequence[Section], computed: tuple[Panel, ComputeFit] | None
) -> list[Section]:
    """Return the sections with the panel of the fit beside the other evaluations."""
    more = (computed[0],) if computed else ()
    return [
        replace(section, panels=(*section.panels, *more))
        if section.title == "Evaluation"
        else section
        for section in found
    ]


def _compute_tiles(computed: tuple[Panel, ComputeFit] | None) -> list[Tile]:
    if computed is None:
        return []
    fit = computed[1]
    low, high, middle = drawing.said(fit.low), drawing.said(fit.high), drawing.said(fit.middle, "s")
    note = (
        f"95 %: {low} to {high}; half of the way after {middle}, exponent {drawing.said(fit.power)}"
    )
    return [Tile("limit of more compute", drawing.said(fit.top), note)]


def _rank_tiles(folder: Path, steps: Sequence[Mapping[str, Any]]) -> list[Tile]:
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
    over = drawing.said(sum(excesses) / len(excesses), "share")
    note = f"in {len(excesses)} of {len(compared)} steps, by {over} over the median"
    return [Tile("slowest rank", who, note)]


def _summary_tiles(summary: Mapping[str, Any]) -> list[Tile]:
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


def _render(
    config: Mapping[str, Any],
    complaints: Sequence[str],
    tiles: Sequence[Tile],
    found: Sequence[Section],
    galleries: Sequence[Gallery],
    album: Album,
    stages: Sequence[Stretch],
) -> str:
    known = dict(MAIN_COLOUR)
    return render(
        "template.html",
        "report.js",
        title=config["run"]["name"],
        subtitle=_subtitle(config),
        complaints=complaints,
        tiles=tiles,
        sections=[
            {
                "title": section.title,
                "about": section.about,
                "drawings": [
                    # A cold start counts steps of its own.
                    drawing.draw(panel, known, () if section.title == COLD_START else stages)
                    for panel in section.panels
                ],
                "constants": section.constants,
            }
            for section in found
        ],
        galleries=galleries,
        links=[*(s.title for s in found), *(g.title for g in galleries), "Config"],
        images=album.images.values(),
        config=json.dumps(config, indent=2, ensure_ascii=False),
        size={
            "width": drawing.WIDTH,
            "height": drawing.HEIGHT,
            "left": drawing.LEFT,
            "right": drawing.RIGHT,
            "top": drawing.TOP,
            "bottom": drawing.BOTTOM,
        },
    )


def render(template: str, script: str | None = None, **values: Any) -> str:
    """Render a template of this room with its script, if it has one, and our style inline.

    Texts of models and data are escaped; no script but this one runs.
    """
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"said": drawing.said, "score": _score}
    code = (HERE / script).read_text(encoding="utf-8") if script else ""
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    return environment.get_template(template).render(
        style=Markup((HERE / "style.css").read_text(encoding="utf-8")),
        script=Markup(code),
        script_hash=f"sha256-{digest}",
        **values,
    )


def _score(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _subtitle(config: Mapping[str, Any]) -> str:
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
