"""`vlmrl compare`: is this model better than that one, on the same rows?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from vlmrl import plugins
from vlmrl.benchmarking.base import Known
from vlmrl.benchmarking.scoring import Figure, Stored, find_results
from vlmrl.errors import UserError
from vlmrl.features.benchmarks.comparison import Contrast, Difference, by_benchmark, compare
from vlmrl.features.benchmarks.tables import known_lines, make_table, plain_truth, say_figure
from vlmrl.pages.render import render
from vlmrl.system import files
from vlmrl.system.files import write_bytes

# --------------------------------------------------------------------------------------------------
# The offline page of a comparison: intervals drawn, rows won and lost with the answers of both.


INTERVAL_WIDTH = 320
"""Of a drawn interval, in units of its SVG; 0 is in the middle."""
MAX_SHOWN = 50
"""Rows won, and rows lost, of a benchmark."""
MAX_TEXT = 3000
"""Characters of a text."""


@dataclass(frozen=True)
class Table:
    """A comparison on one benchmark, ready for the page."""

    title: str
    about: str
    first: str
    second: str
    lines: list[dict[str, Any]]
    published: list[str]
    moves: list[dict[str, Any]]


def lay_out(
    first: str, second: str, contrast: Contrast, scale: float, published: Sequence[str]
) -> Table:
    """Lay out a contrast of two arms; `scale` makes points of the benchmark's number."""
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
        f"Asked and scored as {contrast.protocol}; {len(contrast.wins)} rows won, "
        f"{len(contrast.losses)} lost.",
        first,
        second,
        [
            _line(difference, _points(difference, scale), reach)
            for difference in contrast.differences
        ],
        list(published),
        list(_moves(contrast, (first, second))),
    )


def write_page(
    path: Path,
    title: str,
    conclusions: Sequence[str],
    cautions: Sequence[str],
    tables: Sequence[Table],
    drawings: Sequence[Mapping[str, object]],
) -> Path:
    """Write the page; `drawings` are those of pass@k (`compare.draw_passes`)."""
    moves = [move for table in tables for move in table.moves]
    page = render(
        Path(__file__).parent,
        "comparison.html",
        "comparison.js",
        title=title,
        conclusions=conclusions,
        cautions=cautions,
        tables=tables,
        drawings=drawings,
        moves=moves,
        benchmarks=list(dict.fromkeys(move["benchmark"] for move in moves)),
        max_shown=MAX_SHOWN,
    )
    return write_bytes(path, page.encode("utf-8", "replace"))


def say_difference(difference: Difference, scale: float) -> str:
    """Return a difference in points and its interval, as far as there is one."""
    value, low, high = (
        f"{scale * number:+.1f}" for number in (difference.value, difference.low, difference.high)
    )
    return (
        f"{value} [{low}, {high}]" if difference.bounded else f"{value} [no interval: one cluster]"
    )


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


def _moves(contrast: Contrast, names: tuple[str, str]) -> Iterator[dict[str, Any]]:
    for kind, moves in (("won", contrast.wins), ("lost", contrast.losses)):
        for move in moves[:MAX_SHOWN]:
            rows = (move.first, move.second)
            yield {
                "kind": kind,
                "benchmark": contrast.benchmark,
                "id": move.first.name,
                "change": f"{move.change:+.2f}",
                "question": move.first.question[:MAX_TEXT],
                "truth": plain_truth(move.first.truth),
                "answers": [
                    (
                        f"{name}: official {_said(row.official)}, strict {_said(row.strict)}",
                        "no answer" if row.answer is None else row.answer[:MAX_TEXT],
                        row.text[:MAX_TEXT] if row.text != row.answer else "",
                    )
                    for name, row in zip(names, rows, strict=True)
                ],
            }


def _said(score: float | None) -> str:
    return "none" if score is None else f"{score:.2f}"


# --------------------------------------------------------------------------------------------------
# pass@k of several models on one axis, from what `vlmrl eval --benchmark --samples K` stored.


WIDTH, HEIGHT = 460, 230
"""Size of a drawing in units of its SVG."""
LEFT, RIGHT, TOP, BOTTOM = 46, 20, 10, 24
"""Margins around its axes."""
DODGE = 4
"""Distance between the intervals of two models at the same k, SVG units."""
COLOURS = 8
"""Number of colours in style.css."""
MARKS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Of the upright axis."""

Arms = Mapping[str, Sequence[Mapping[str, Stored]]]
"""By the name of an arm, the results of its seeds by benchmark."""


@dataclass(frozen=True, slots=True)
class PassCurves:
    """pass@k on one benchmark: by the name of a model (and its seed), the figure of each k.

    Each interval is that of the model alone, clusters drawn whole.
    """

    benchmark: str
    curves: Mapping[str, Mapping[int, Figure]]

    @property
    def ks(self) -> list[int]:
        """Return every k of any curve, rising."""
        return sorted({k for figures in self.curves.values() for k in figures})


def find_passes(arms: Arms, benchmarks: Sequence[str]) -> Iterator[PassCurves]:
    """Yield the curves of each benchmark on which every arm was sampled."""
    for benchmark in benchmarks:
        curves = _curves(arms, benchmark)
        if all(curves.values()):
            yield PassCurves(benchmark, {n: c for some in curves.values() for n, c in some.items()})


def lacking_passes(arms: Arms, benchmarks: Sequence[str]) -> Iterator[str]:
    """Yield a line on each benchmark on which only some of the arms were sampled."""
    for benchmark in benchmarks:
        curves = _curves(arms, benchmark)
        lacking = [name for name, some in curves.items() if not some]
        if lacking and any(curves.values()):
            yield (
                f"{benchmark}: no pass@k curves, because {', '.join(lacking)} has none: add "
                "`--samples` to its `vlmrl eval`"
            )


def tabulate_passes(passes: PassCurves) -> Any:
    """Return the curves as a table for the terminal, a line for each k."""
    table = make_table(f"{passes.benchmark}: pass@", *passes.curves)
    for k in passes.ks:
        cells = (
            say_figure(figures[k], 100, 1) if k in figures else "-"
            for figures in passes.curves.values()
        )
        table.add_row(str(k), *cells)
    return table


def draw_passes(passes: PassCurves) -> dict[str, Any]:
    """Lay out the curves for the page: pass@k from 0 to 1 over k, each doubling of k as far as the next."""
    ks, count = passes.ks, len(passes.curves)
    reach = max(1.0, math.log2(ks[-1]))

    def across(k: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log2(k) / reach

    def up(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value

    curves = []
    for number, (name, figures) in enumerate(passes.curves.items()):
        shift = (number - (count - 1) / 2) * DODGE
        points = []
        for k, figure in sorted(figures.items()):
            # The interval of too few rows is a point.
            low, high = (figure.value if b is None else b for b in (figure.low, figure.high))
            drawn = (across(k) + shift, up(figure.value), up(low), up(high))
            points.append([round(n, 1) for n in drawn])
        line = " ".join(f"{x},{y}" for x, y, _, _ in points)
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
        "across": [(round(across(k), 1), str(k)) for k in ks],
        "up": [(round(up(value), 1), f"{value:.0%}") for value in MARKS],
        "curves": curves,
    }


def _curves(arms: Arms, benchmark: str) -> dict[str, dict[str, Mapping[int, Figure]]]:
    """Return by arm the curves of its sampled seeds, each under a name of its own."""
    return {
        name: {
            name if len(seeds) == 1 else f"{name}, {number}": seed[benchmark].passes
            for number, seed in enumerate(seeds, 1)
            if seed[benchmark].passes
        }
        for name, seeds in arms.items()
    }


# --------------------------------------------------------------------------------------------------


SCALE = {"fraction": 100.0, "percent": 100.0, "sum": 1.0}
"""By the unit of a number: what makes points of it."""
ASKED_ALIKE = (
    "ask", "template", "decoding", "max_tokens", "engine", "space", "pixels", "judge", "versions",
)  # fmt: skip
"""Keys of a manifest in which results that are compared had better not differ."""


@dataclass(frozen=True)
class ArmComparison:
    """Two arms by name, on every benchmark that they share."""

    first: str
    second: str
    contrasts: tuple[Contrast, ...]
    seeds: tuple[int, int]
    """Of the first and of the second."""
    asked_otherwise: tuple[str, ...]
    """What differs between their manifests besides the weights."""
    notes: tuple[str, ...]
    """What is to be said of pass@k that one lacks, and of official numbers: no judge, or by which one."""
    passes: tuple[PassCurves, ...] = ()
    """pass@k of both, where both were sampled."""


def compare_results(arms: Sequence[str]) -> list[ArmComparison]:
    """Compare every arm with the first; an arm is a folder of results, or several with commas between.

    Raises:
        UserError: fewer than two arms, a folder without results, or results of other rows.
    """
    if len(arms) < 2:
        raise UserError("vlmrl compare: expected at least two results, got one")
    stored = [[find_results(Path(folder)) for folder in arm.split(",")] for arm in arms]
    names = _names(arms)
    results = [[{n: s.result for n, s in seed.items()} for seed in arm] for arm in stored]
    comparisons = []
    for i in range(1, len(arms)):
        shared = by_benchmark([results[0], results[i]])
        contrasts = tuple(
            replace(compare(first, second), benchmark=name) for name, (first, second) in shared
        )
        everything = [s for arm in (stored[0], stored[i]) for seed in arm for s in seed.values()]
        noted = {f"{s.result.benchmark}: official: {s.result.note}": s.result for s in everything}
        both, on = {names[0]: stored[0], names[i]: stored[i]}, [name for name, _ in shared]
        notes = (
            *(line for line, result in noted.items() if result.note),
            *lacking_passes(both, on),
        )
        differing, passes = tuple(_differing(everything)), tuple(find_passes(both, on))
        seeds = (len(arms[0].split(",")), len(arms[i].split(",")))
        comparisons.append(
            ArmComparison(names[0], names[i], contrasts, seeds, differing, notes, passes)
        )
    return comparisons


def conclude(comparison: ArmComparison, number: str | None = None) -> str:
    """Answer the reader's question in a sentence, by the first number of each benchmark or this one."""
    better: dict[str, list[str]] = {"better": [], "worse": [], "unclear": []}
    for contrast in comparison.contrasts:
        main = contrast.main if number is None else _overall(contrast, number)
        if main.verdict == "unclear":
            better["unclear"].append(contrast.benchmark)
        else:
            scale = SCALE[contrast.unit] * (1 if main.verdict == "better" else -1)
            low, high = sorted((scale * main.low, scale * main.high))
            points = f"{scale * main.value:.1f} points [{low:.1f}, {high:.1f}]"
            better[main.verdict].append(f"on {contrast.benchmark} by {points}")
    seeds = " (one seed each)" if comparison.seeds == (1, 1) else ""
    parts = [
        f"{comparison.second} is {verdict} than {comparison.first}{seeds} "
        f"{' and '.join(better[verdict])}"
        for verdict in ("better", "worse")
        if better[verdict]
    ]
    if better["unclear"]:
        parts.append(f"no difference can be told on {', '.join(better['unclear'])}")
    return "; ".join(parts) + "."


def print_comparisons(comparisons: Sequence[ArmComparison]) -> None:
    """Print the answers first, then a table of each benchmark."""
    console = Console()
    for comparison in comparisons:
        console.print(conclude(comparison), soft_wrap=True, highlight=False)
    for comparison in comparisons:
        for line in _cautions(comparison):
            console.print(line, soft_wrap=True, highlight=False)
        for contrast in comparison.contrasts:
            console.print(_table(comparison, contrast))
            for line in known_lines(contrast.benchmark):
                console.print(line, soft_wrap=True, highlight=False, markup=False)
        for passes in comparison.passes:
            console.print(tabulate_passes(passes))
    console.print(
        "In points. In brackets: 95 % intervals of the paired difference, clusters drawn whole."
    )
    if any(comparison.passes for comparison in comparisons):
        console.print("Of pass@k: intervals of each model alone, clusters drawn whole.")


def write_comparisons(comparisons: Sequence[ArmComparison], folder: Path) -> None:
    """Write `comparison.json` and the offline page `comparison.html`."""
    content = [
        {"conclusion": conclude(comparison), **_as_json(comparison)} for comparison in comparisons
    ]
    files.write_json(folder / "comparison.json", {"comparisons": content})
    tables = [
        lay_out(
            *(comparison.first, comparison.second, contrast, SCALE[contrast.unit]),
            list(known_lines(contrast.benchmark)),
        )
        for comparison in comparisons
        for contrast in comparison.contrasts
    ]
    title = f"{', '.join(comparison.second for comparison in comparisons)} against {comparisons[0].first}"
    cautions = [line for comparison in comparisons for line in _cautions(comparison)]
    drawings = [draw_passes(passes) for comparison in comparisons for passes in comparison.passes]
    conclusions = list(map(conclude, comparisons))
    write_page(folder / "comparison.html", title, conclusions, cautions, tables, drawings)


def known_values(benchmark: str) -> tuple[Known, ...]:
    """Return the published values of a benchmark."""
    return tuple(plugins.load("benchmark", benchmark.partition(":")[0]).known)


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
        entry["published"] = [asdict(known) for known in known_values(contrast.benchmark)]
        contrasts.append(entry)
    return {**asdict(comparison), "contrasts": contrasts}


def _overall(contrast: Contrast, number: str) -> Difference:
    return next(d for d in contrast.differences if d.number == number and not d.column)


def _cautions(comparison: ArmComparison) -> Iterator[str]:
    strict = conclude(comparison, "strict")
    turned = [c for c in comparison.contrasts if c.main.verdict != _overall(c, "strict").verdict]
    if turned:
        yield f"By the strict number: {strict}"
    if comparison.asked_otherwise:
        yield f"The results differ not only in the model: {'; '.join(comparison.asked_otherwise)}"
    yield from comparison.notes
    for contrast in comparison.contrasts:
        if not contrast.main.bounded:
            yield f"{contrast.benchmark}: all rows are of one cluster, from which no interval can be had"
        if contrast.faulted:
            yield f"{contrast.benchmark}: {contrast.faulted} rows left out, the strict verifier failed"


def _table(comparison: ArmComparison, contrast: Contrast) -> Any:
    name = f"{contrast.benchmark} ({contrast.protocol})"
    table = make_table(name, "n", comparison.first, comparison.second, "difference", "")
    scale = SCALE[contrast.unit]
    for difference in contrast.differences:
        within = f"  {difference.column} {difference.group}" if difference.column else ""
        factor = 100.0 if difference.column else scale
        values = [f"{factor * number:.1f}" for number in (difference.first, difference.second)]
        verdict = "" if difference.verdict == "unclear" else difference.verdict
        table.add_row(
            difference.number + within,
            str(difference.count),
            *values,
            say_difference(difference, factor),
            verdict,
        )
    table.caption = f"rows won {len(contrast.wins)}, lost {len(contrast.losses)}"
    return table


def _names(arms: Sequence[str]) -> list[str]:
    """Return the shortest ends of the folders' paths that tell the arms apart."""
    paths = [Path(arm.split(",")[0]).parts for arm in arms]
    while len({path[-1] for path in paths}) == 1 and min(map(len, paths)) > 1:
        paths = [path[:-1] for path in paths]
    seeds = [arm.count(",") + 1 for arm in arms]
    return [
        path[-1] + (f" ({count} seeds)" if count > 1 else "")
        for path, count in zip(paths, seeds, strict=True)
    ]


def _differing(stored: Sequence[Stored]) -> Iterator[str]:
    """Yield the keys of the manifests, besides the model, in which results of a benchmark differ."""
    for key in ASKED_ALIKE:
        by_name: dict[str, list[str]] = {}
        for entry in stored:
            values = by_name.setdefault(entry.manifest.get("benchmark", entry.result.benchmark), [])
            value = str(entry.manifest.get(key))
            values += [value] if value not in values else []
        for benchmark, values in by_name.items():
            if len(values) > 1:
                yield f"{key} on {benchmark}: " + " and ".join(value[:80] for value in values)
                break
