"""Lay out a panel of curves as the numbers of an inline SVG: ticks, paths, bars, hover values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from matplotlib.ticker import MaxNLocator

from vlmrl.features.report.growing import MAX_POINTS, Series, Stretch
from vlmrl.features.report.series import CurvePanel, colours, is_quiet, smoothed
from vlmrl.pages.render import number
from vlmrl.runs.metrics import Unit

COLOURS = 8
"""Number of colours in style.css."""
MAX_LABEL = 8
"""Characters that fit left of the axis."""
DODGE = 5
"""Distance between the intervals of different curves at the same step, SVG units."""

MAX_NAME = 40
"""Characters of the name of an axis."""
LABEL_GAP = 14
"""Least distance between the labels of two levels, SVG units."""

Scale = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Size:
    """Width and height of an SVG in its own units, which the page scales, and the margins of its axes."""

    width: int
    height: int
    left: int = 58
    right: int = 16
    top: int = 24
    bottom: int = 38


SMALL = Size(390, 240)
"""A chart among others."""
LARGE, NARROW = Size(1200, 320, right=64), Size(360, 300, right=64)
"""The one chart of the first screen, with room for levels: on a wide screen, and on a phone."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis, in SVG units, and its label."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Curve:
    """One curve: path data, and the positions of its dots and interval bars (x, low, high)."""

    name: str
    colour: int
    line: str
    smooth: str
    area: str
    dots: tuple[tuple[float, float], ...]
    bars: tuple[tuple[float, float, float], ...]
    last: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """A panel ready for the template. `hover` is the JSON that the page's script reads."""

    title: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    curves: tuple[Curve, ...]
    hover: dict[str, Any]
    size: Size
    about: str = ""
    quiet: bool = False
    """Whether nothing happens in it."""
    stages: tuple[Tick, ...] = ()
    """Where stages of training begin, with what is said of them."""
    levels: tuple[tuple[float, Tick], ...] = ()
    """Heights of level lines, each with the place of its number right of the axes."""
    names: tuple[tuple[str, str], ...] = ()
    """What the level lines are, each with its number, from the lowest up."""
    upright: str = ""
    """The name of the upright axis."""


def draw(
    panel: CurvePanel, known: dict[str, int], stages: Sequence[Stretch] = (), size: Size = SMALL
) -> Drawing:
    """Lay out the panel in a box of that size; `known` holds the colours of names so far."""
    panel = replace(panel, series=tuple(map(_at_some_steps, panel.series)))
    layers = _stacked(panel.series) if panel.stacked else panel.series
    steps = sorted({step for series in layers for step in series.steps})
    # Intervals stand side by side: leave room for them at both ends.
    room = len(layers) / 2 * DODGE if layers[0].low else 0.0
    x_ticks, x = _axis(
        steps[0],
        steps[-1],
        size.left + room,
        size.width - size.right - room,
        whole=True,
        tight=True,
    )
    low, high = _range(layers, from_zero=panel.stacked or panel.unit == "share")
    marked = [value for _, value in panel.levels]
    low, high = min([low, *marked]), max([high, *marked])
    whole = panel.unit == "share" or low in (0, 1)
    if 0 <= low == high <= 1 and whole:
        low, high = 0.0, 1.0
    y_ticks, y = _axis(low, high, size.height - size.bottom, size.top)
    curves = []
    picked = colours(panel, known, COLOURS)
    for i, (series, layer) in enumerate(zip(panel.series, layers, strict=True)):
        below = layers[i - 1] if panel.stacked and i else None
        shift = (i - (len(layers) - 1) / 2) * DODGE if series.low else 0.0
        curve = _curve(series, layer, below, panel, _shifted(x, shift), y)
        curves.append(replace(curve, colour=picked[i]))
    begins = [
        (stage, f"{stage.label}: from step {stage.first}")
        for stage in stages[1:]
        if panel.across == "step" and steps[0] <= stage.first <= steps[-1]
    ]
    return Drawing(
        title=panel.title,
        x_ticks=_ticks(x_ticks, x),
        y_ticks=_ticks(y_ticks, y, panel.unit),
        curves=tuple(curves),
        hover={
            **_hover(panel, steps, x, [layer.name for layer in layers if smoothed(layer)]),
            "stages": [[stage.first, label] for stage, label in begins],
        },
        size=size,
        about=panel.about,
        quiet=is_quiet(panel),
        levels=_levels(panel.levels, y),
        names=tuple((n, number(v)) for n, v in sorted(panel.levels, key=lambda level: level[1])),
        upright=_upright(panel),
        stages=tuple(Tick(round(x(stage.first), 1), label) for stage, label in begins),
    )


def _at_some_steps(series: Series) -> Series:
    """Return at most MAX_POINTS points of a curve with their intervals, evenly spread, both ends kept."""
    last = len(series.steps) - 1
    if last < MAX_POINTS:
        return series
    at = [round(i * last / (MAX_POINTS - 1)) for i in range(MAX_POINTS)]
    picked = ([bound[i] for i in at] if bound else () for bound in (series.low, series.high))
    low, high = map(tuple, picked)
    steps, values = tuple(series.steps[i] for i in at), tuple(series.values[i] for i in at)
    return Series(series.name, steps, values, low, high)


def _levels(levels: Sequence[tuple[str, float]], y: Scale) -> tuple[tuple[float, Tick], ...]:
    """Place the numbers of level lines right of them, from the lowest line up, without overlap."""
    labels: list[tuple[float, Tick]] = []
    for _, value in sorted(levels, key=lambda level: level[1]):
        at = round(y(value), 1)
        free = min(at, labels[-1][1].at - LABEL_GAP) if labels else at
        labels.append((at, Tick(round(free, 1), number(value))))
    return tuple(labels)


def _upright(panel: CurvePanel) -> str:
    """Return what is counted upwards."""
    if panel.unit:
        return {"share": "share", "s": "seconds"}[panel.unit]
    is_named = len(panel.series) == 1 or panel.title.startswith("Held-out")
    return panel.title if is_named and len(panel.title) <= MAX_NAME else "value"


def _ticks(values: Sequence[float], scale: Scale, unit: Unit = "") -> tuple[Tick, ...]:
    """Label marks with the fewest digits that distinguish them; if many, as distances from the first."""
    attempts = ([number(v, unit, digits) for v in values] for digits in range(3, 18))
    labels = next(labels for labels in attempts if len(set(labels)) == len(values))
    if len(values) > 1 and max(map(len, labels)) > MAX_LABEL:
        first, *others = values
        labels = [number(first, unit), *(f"+{number(v - first, unit, 2)}" for v in others)]
    return tuple(Tick(round(scale(v), 1), text) for v, text in zip(values, labels, strict=True))


def _curve(
    series: Series, layer: Series, below: Series | None, panel: CurvePanel, x: Scale, y: Scale
) -> Curve:
    smooth = None if panel.stacked else smoothed(layer)
    # Few points are dots as well: a line alone hides where the run was measured.
    dotted = not panel.stacked and len(layer.steps) <= 30
    places = [(x(s), y(v)) for s, v in zip(layer.steps, layer.values, strict=True) if v is not None]
    bars = zip(layer.steps, layer.low, layer.high, strict=True) if layer.low else ()
    known = [value for value in series.values if value is not None]
    return Curve(
        name=series.name,
        colour=0,
        line=_path(layer, x, y),
        smooth=_path(smooth, x, y) if smooth else "",
        area=_area(layer, below, x, y) if panel.stacked else "",
        dots=tuple((round(a, 1), round(b, 1)) for a, b in places) if dotted else (),
        bars=tuple((round(x(s), 1), round(y(a), 1), round(y(b), 1)) for s, a, b in bars),
        last=number(known[-1] if known else None, panel.unit),
    )


def _axis(
    low: float, high: float, start: float, end: float, whole: bool = False, tight: bool = False
) -> tuple[list[float], Scale]:
    """Return round tick values and the map onto the SVG; a tight axis ends where the data end."""
    if low == high:
        reach = 1.0 if whole else abs(low) * 0.1 or 1.0
        low, high = low - reach, high + reach
    values = [
        float(v)
        for v in MaxNLocator(5, integer=whole, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    ]
    if tight:
        values = [v for v in values if low <= v <= high]
    else:
        low, high = values[0], values[-1]
    return values, lambda v: start + (v - low) / (high - low) * (end - start)


def _shifted(scale: Scale, by: float) -> Scale:
    return lambda value: scale(value) + by


def _range(layers: Sequence[Series], from_zero: bool) -> tuple[float, float]:
    values = [v for s in layers for v in (*s.values, *s.low, *s.high) if v is not None]
    values += [0.0] if from_zero or not values else []
    return min(values), max(values)


def _path(series: Series, x: Scale, y: Scale) -> str:
    """Return an SVG path with a gap wherever a value is missing."""
    points = list(zip(series.steps, series.values, strict=True))
    pieces = []
    for known, piece in groupby(points, key=lambda point: point[1] is not None):
        if known:
            places = [f"{x(s):.1f},{y(v):.1f}" for s, v in piece if v is not None]
            pieces.append("M" + "L".join(places))
    return "".join(pieces)


def _area(layer: Series, below: Series | None, x: Scale, y: Scale) -> str:
    floor = below.values if below else (0.0,) * len(layer.steps)
    top = [f"{x(s):.1f},{y(v or 0.0):.1f}" for s, v in zip(layer.steps, layer.values, strict=True)]
    base = [f"{x(s):.1f},{y(v or 0.0):.1f}" for s, v in zip(layer.steps, floor, strict=True)]
    return "M" + "L".join([*top, *reversed(base)]) + "Z"


def _stacked(series: Sequence[Series]) -> list[Series]:
    """Stack the curves on one another, each over the steps of any of them."""
    steps = tuple(sorted({step for curve in series for step in curve.steps}))
    total = [0.0] * len(steps)
    layers = []
    for curve in series:
        own = dict(zip(curve.steps, curve.values, strict=True))
        total = [t + (own.get(s) or 0.0) for t, s in zip(total, steps, strict=True)]
        layers.append(Series(curve.name, steps, tuple(total)))
    return layers


def _hover(
    panel: CurvePanel, steps: Sequence[int], x: Scale, smooth: Sequence[str]
) -> dict[str, Any]:
    """Return what the page's script draws the panel again from, and what it says of each step."""
    rows, values, bounds = [], [], []
    for series in panel.series:
        own = dict(zip(series.steps, series.values, strict=True))
        bars = dict(zip(series.steps, zip(series.low, series.high, strict=True), strict=False))
        rows.append([_with_bar(own.get(s), bars.get(s), panel.unit) for s in steps])
        values.append([_short(own.get(s)) for s in steps])
        bounds.append([[*map(_short, bars[s])] if s in bars else None for s in steps])
    return {
        "across": panel.across,
        "steps": steps,
        "x": [round(x(s), 1) for s in steps],
        "rows": rows,
        "values": values,
        "bounds": bounds if any(any(each) for each in bounds) else [],
        "names": [series.name for series in panel.series],
        "smooth": [series.name in smooth for series in panel.series],
        "unit": panel.unit,
        "stacked": panel.stacked,
        "levels": sorted(_short(value) for _, value in panel.levels),
    }


def _short(value: float | None) -> float | None:
    """Return a number with the digits that a curve or a table of it needs."""
    return None if value is None or value - value != 0 else float(f"{value:.6g}")


def _with_bar(value: float | None, bar: tuple[float, float] | None, unit: Unit) -> str:
    if value is None:
        return ""
    interval = f" [{number(bar[0], unit)}, {number(bar[1], unit)}]" if bar else ""
    return number(value, unit) + interval
