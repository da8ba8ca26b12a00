"""The files of a comparison: `comparison.json`, and an offline page.

The page draws the intervals, and shows rows won and lost with the answers of both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from vlmrl.benchmarking.base import published_values
from vlmrl.benchmarking.scoring import ANSWERS, Figure, RowScore
from vlmrl.features.benchmarks.compare import (
    SCALE,
    ArmComparison,
    PassCurves,
    cautions,
    conclude,
    say_difference,
)
from vlmrl.features.benchmarks.comparison import ChangedRow, Contrast, Difference
from vlmrl.features.benchmarks.evaluated_data import DATA, EvaluatedData
from vlmrl.features.benchmarks.tables import known_lines, plain_truth, say_figure
from vlmrl.pages.media import (
    Album,
    MediaView,
    Shape,
    canvas_of,
    say_truth,
    say_value,
    shapes,
    view,
)
from vlmrl.pages.render import render
from vlmrl.system import files

INTERVAL_WIDTH = 320
"""Of a drawn interval, in units of its SVG; 0 is in the middle."""
MAX_SHOWN = 50
"""Rows won, and rows lost, of a benchmark."""
MAX_TEXT = 3000
"""Characters of a text."""
IMAGE_BYTES = 12_000_000
"""Budget of the images of a page, in characters of their data URIs."""


@dataclass(frozen=True)
class MovedAnswer:
    """What one arm answered: its text, what was read of it, and where that is drawn."""

    label: str
    answer: str
    text: str
    shapes: tuple[Shape, ...] = ()


@dataclass(frozen=True)
class MovedRow:
    """A row won or lost, ready for the page, with its media where they are stored."""

    kind: str
    benchmark: str
    id: str
    change: str
    question: str
    truth: str
    answers: tuple[MovedAnswer, ...]
    views: tuple[MediaView, ...] = ()
    canvas: MediaView | None = None
    truth_shapes: tuple[Shape, ...] = ()
    space: str = ""
    """What the places in its texts are in."""

    alone: ClassVar[None] = None

    @property
    def attempts(self) -> tuple[MovedAnswer, ...]:
        """Return the answers, as the macros of media.html call them."""
        return self.answers

    @property
    def has_spans(self) -> bool:
        """Return whether there is something to show on a timeline."""
        drawn = (*self.truth_shapes, *(s for answer in self.answers for s in answer.shapes))
        return any(shape.kind == "span" for shape in drawn)


@dataclass(frozen=True)
class Table:
    """A comparison on one benchmark, ready for the page."""

    title: str
    about: str
    first: str
    second: str
    lines: list[dict[str, Any]]
    published: list[str]
    moves: list[MovedRow]
    settings: Sequence[tuple[str, str, str]]


def lay_out(comparison: ArmComparison, contrast: Contrast, album: Album) -> Table:
    """Lay out a contrast of two arms; the media of its rows are taken from the album."""
    first, second, scale = comparison.first, comparison.second, SCALE[contrast.unit]
    reach = max(
        abs(bound) * _points(difference, scale)
        for difference in contrast.differences
        for bound in (
            *((difference.low, difference.high) if difference.bounded else (difference.value,)),
            1e-9,
        )
    )
    return Table(
        f"{contrast.benchmark}: {second} and {first}",
        f"{_how(contrast)}; {len(contrast.wins)} rows won, {len(contrast.losses)} lost.",
        first,
        second,
        [
            _line(difference, _points(difference, scale), reach)
            for difference in contrast.differences
        ],
        [] if contrast.protocol == DATA else list(known_lines(contrast.benchmark)),
        list(_moves(comparison, contrast, album)),
        comparison.settings,
    )


def _how(contrast: Contrast) -> str:
    if contrast.protocol == DATA:
        return f"Rows paired by the id of their sample, the first number is {contrast.main.number}"
    return f"Asked and scored as {contrast.protocol}"


def write_page(
    path: Path,
    title: str,
    conclusions: Sequence[str],
    cautions: Sequence[str],
    tables: Sequence[Table],
    drawings: Sequence[Mapping[str, object]],
    album: Album,
) -> Path:
    """Write the page; `drawings` are those of pass@k ."""
    moves = [move for table in tables for move in table.moves]
    page = render(
        Path(__file__).parent,
        "comparison.html",
        "charts.js",
        "comparison.js",
        title=title,
        conclusions=conclusions,
        cautions=cautions,
        tables=tables,
        drawings=drawings,
        moves=moves,
        images=list(album.images.values()),
        benchmarks=list(dict.fromkeys(move.benchmark for move in moves)),
        max_shown=MAX_SHOWN,
    )
    return files.write_bytes(path, page.encode("utf-8", "replace"))


def _points(difference: Difference, scale: float) -> float:
    return 100.0 if difference.column else scale


def _line(difference: Difference, scale: float, reach: float) -> dict[str, Any]:
    def place(value: float) -> float:
        return round(INTERVAL_WIDTH / 2 * (1 + 0.95 * scale * value / reach), 1)

    low = difference.low if difference.bounded else difference.value
    high = difference.high if difference.bounded else difference.value
    within = f", {difference.column} {difference.group}" if difference.column else ""
    return {
        "name": difference.number + within,
        "within": bool(difference.column),
        "verdict": difference.verdict,
        "count": difference.count,
        "first": f"{scale * difference.first:.1f}",
        "second": f"{scale * difference.second:.1f}",
        "difference": say_difference(difference, scale),
        "low": place(low),
        "high": place(high),
        "at": place(difference.value),
    }


def _moves(comparison: ArmComparison, contrast: Contrast, album: Album) -> Iterator[MovedRow]:
    names = (comparison.first, comparison.second)
    frames = _frames(comparison.folders.get(contrast.benchmark))
    for kind, moves in (("won", contrast.wins), ("lost", contrast.losses)):
        for move in moves[:MAX_SHOWN]:
            plain = MovedRow(
                kind=kind,
                benchmark=contrast.benchmark,
                id=move.first.name,
                change=f"{move.change:+.2f}",
                question=move.first.question[:MAX_TEXT],
                truth=plain_truth(move.first.truth, frames.get(move.index)),
                answers=tuple(
                    MovedAnswer(
                        f"{name}: {_scores(contrast, move, row)}",
                        "no answer" if row.answer is None else row.answer[:MAX_TEXT],
                        row.text[:MAX_TEXT] if row.text != row.answer else "",
                    )
                    for name, row in zip(names, (move.first, move.second), strict=True)
                ),
            )
            pairs = comparison.evaluated
            yield _with_media(plain, move, pairs, album) if pairs else plain


def _frames(folder: Path | None) -> dict[int, Mapping[str, Any]]:
    """Return by row the frame of a benchmark's answers: truths are said in the space of the answers."""
    path = folder and folder / ANSWERS
    return (
        {line["index"]: line["frame"] for line in files.read_lines(path)}
        if path and path.is_file()
        else {}
    )


def _with_media(
    plain: MovedRow, move: ChangedRow, pairs: tuple[EvaluatedData, EvaluatedData], album: Album
) -> MovedRow:
    """Return the row with its media and what was read of both answers, all in one coordinate system."""
    row = pairs[0].rows[move.index]
    album.folder = pairs[0].media
    views = tuple(view(medium, album) for medium in row["media"])
    canvas, frame = canvas_of(views, row.get("main_medium")), row.get("frame") or {}
    frame = {key: frame[key] for key in ("width", "height") if frame.get(key)}
    answers = []
    for answer, each in zip(plain.answers, pairs, strict=True):
        completion = each.rows[move.index]["completions"][0]
        verdict = completion["verdicts"].get(move.number.rpartition("/")[2]) or {}
        read = verdict.get("answer")
        drawn = shapes(read, canvas)
        text = say_value(read, frame) if drawn else answer.answer
        whole = completion["text"][:MAX_TEXT] if text != completion["text"] else ""
        answers.append(replace(answer, answer=text, text=whole, shapes=drawn))
    drawn = shapes(row["truth"], canvas)
    sized = any(shape.kind != "span" for shape in drawn) and frame.get("width")
    return replace(
        plain,
        truth=say_truth(row["truth"], frame),
        answers=tuple(answers),
        views=views,
        canvas=canvas,
        truth_shapes=drawn,
        space=f"in pixels of {frame['width']} x {frame['height']}" if sized else "",
    )


def _scores(contrast: Contrast, move: ChangedRow, row: RowScore) -> str:
    if contrast.protocol == DATA:
        return f"{move.number} {_said(row.score(move.number))}"
    return f"official {_said(row.official)}, strict {_said(row.strict)}"


def _said(score: float | None) -> str:
    return "none" if score is None else f"{score:.2f}"


WIDTH, HEIGHT = 460, 260
"""Size of a drawing in units of its SVG."""
LEFT, RIGHT, TOP, BOTTOM = 58, 20, 24, 38
"""Margins around its axes."""
DODGE = 5
"""Distance between the intervals of two models at the same k, SVG units, as in charts.js."""
COLOURS = 8
"""Number of colours in style.css."""
MARKS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Of the upright axis."""


def draw_passes(passes: PassCurves) -> dict[str, Any]:
    """Lay out the curves for the page: pass@k from 0 to 1 over k, each doubling of k as far as the next.

    `hover` is the JSON by which charts.js draws it again: zoomed, or with fewer curves.
    """
    ks, count = passes.ks, len(passes.curves)
    reach, room = max(1.0, math.log2(ks[-1])), count / 2 * DODGE

    def across(k: int) -> float:
        return LEFT + room + (WIDTH - LEFT - RIGHT - 2 * room) * math.log2(k) / reach

    def up(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value

    curves = []
    for number, (name, figures) in enumerate(passes.curves.items()):
        shift = (number - (count - 1) / 2) * DODGE
        points = []
        for k, figure in sorted(figures.items()):
            low, high = _bounds(figure)
            drawn = (across(k) + shift, up(figure.value), up(low), up(high))
            points.append([round(n, 1) for n in drawn])
        line = "M" + "L".join(f"{x},{y}" for x, y, _, _ in points)
        last = max(figures)
        label = f"pass@{last} {say_figure(figures[last], 100, 1)}"
        colour = number % COLOURS
        curves.append(
            {"name": name, "colour": colour, "points": points, "line": line, "last": label}
        )
    return {
        "title": f"{passes.benchmark}: pass@k",
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "right": WIDTH - RIGHT,
        "box": f"{LEFT} {RIGHT} {TOP} {BOTTOM}",
        "top": TOP,
        "bottom": HEIGHT - BOTTOM,
        "across": [(round(across(k), 1), str(k)) for k in ks],
        "up": [(round(up(value), 1), f"{value:.0%}") for value in MARKS],
        "curves": curves,
        "hover": _hover(passes, [round(across(k), 1) for k in ks]),
    }


def _bounds(figure: Figure) -> tuple[float, float]:
    """Return the ends of a figure's interval; that of too few rows is a point."""
    low, high = (figure.value if bound is None else bound for bound in (figure.low, figure.high))
    return low, high


def _hover(passes: PassCurves, x: Sequence[float]) -> dict[str, Any]:
    by_curve = [[figures.get(k) for k in passes.ks] for figures in passes.curves.values()]
    return {
        "across": "k",
        "doubling": True,
        "steps": passes.ks,
        "x": x,
        "names": list(passes.curves),
        "values": [[None if f is None else f.value for f in curve] for curve in by_curve],
        "rows": [["" if f is None else say_figure(f, 100, 1) for f in curve] for curve in by_curve],
        "bounds": [[None if f is None else _bounds(f) for f in curve] for curve in by_curve],
        "smooth": [False] * len(by_curve),
        "levels": [],
        "stages": [],
        "stacked": False,
        "unit": "share",
    }


def write_comparisons(comparisons: Sequence[ArmComparison], folder: Path) -> None:
    """Write `comparison.json` and the offline page `comparison.html`."""
    content = [
        {"conclusion": conclude(comparison), **_as_json(comparison)} for comparison in comparisons
    ]
    files.write_json(folder / "comparison.json", {"comparisons": content})
    album = Album(folder, IMAGE_BYTES)
    tables = [
        lay_out(comparison, contrast, album)
        for comparison in comparisons
        for contrast in comparison.contrasts
    ]
    title = f"{', '.join(comparison.second for comparison in comparisons)} against {comparisons[0].first}"
    warned = [line for comparison in comparisons for line in cautions(comparison)]
    drawings = [draw_passes(passes) for comparison in comparisons for passes in comparison.passes]
    conclusions = list(map(conclude, comparisons))
    write_page(folder / "comparison.html", title, conclusions, warned, tables, drawings, album)


def _as_json(comparison: ArmComparison) -> dict[str, Any]:
    contrasts = []
    for contrast in comparison.contrasts:
        entry = asdict(contrast)
        entry["differences"] = [
            {
                **asdict(d),
                "verdict": d.verdict,
                **({} if d.bounded else {"low": None, "high": None}),
            }
            for d in contrast.differences
        ]
        if contrast.protocol != DATA:
            entry["published"] = [asdict(known) for known in published_values(contrast.benchmark)]
        contrasts.append(entry)
    whole = asdict(replace(comparison, evaluated=None, folders={}))
    del whole["evaluated"], whole["folders"]
    settings = {key: {"from": old, "to": new} for key, old, new in comparison.settings}
    return {**whole, "settings": settings, "contrasts": contrasts}
