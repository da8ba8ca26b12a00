"""`vlmrl compare`: is this model better than that one, on the same rows?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from vlmrl.benchmarking.scoring import Figure, Stored, find_results
from vlmrl.errors import UserError
from vlmrl.features.benchmarks.comparison import Contrast, Difference, by_benchmark, compare
from vlmrl.features.benchmarks.evaluated_data import (
    DATA,
    EvaluatedData,
    differing,
    ends_of,
    is_data,
    pair,
    read_evaluated,
    settings_of,
)
from vlmrl.features.benchmarks.tables import known_lines, make_table, say_figure

# --------------------------------------------------------------------------------------------------
# pass@k of several models on one axis, from what `vlmrl eval --benchmark --samples K` stored.


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


MAX_SETTINGS = 12
"""Keys in which the settings differ that the terminal shows."""
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
    settings: tuple[tuple[str, str, str], ...] = ()
    """Keys in which configs and circumstances of the first seeds differ, from and to, as JSON."""
    evaluated: tuple[EvaluatedData, EvaluatedData] | None = None
    """Of the first seeds, where it is data that were evaluated: their rows, with media."""
    folders: Mapping[str, Path] = field(default_factory=dict)
    """By benchmark the folder of the first arm's first seed."""


def compare_results(arms: Sequence[str]) -> list[ArmComparison]:
    """Compare every arm with the first; an arm is a result, or several with commas between.

    A result is a folder of benchmarks, one of `vlmrl eval --data`, or a run: its last evaluation, or that of
    `RUN:STEP`. A run alone is compared with itself before training.

    Raises:
        UserError: fewer than two arms, a folder without results, or results of other rows.
    """
    members = [member for arm in arms for member in arm.split(",")]
    kinds = {is_data(member): member for member in members}
    if len(kinds) > 1:
        raise UserError(
            f"expected results of one kind, got benchmarks in {kinds[False]} and data in {kinds[True]}"
        )
    if True in kinds:
        return _compare_data(ends_of(arms[0]) if len(members) == 1 else arms)
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
        seeds = (len(arms[0].split(",")), len(arms[i].split(",")))
        models = [next(iter(stored[at][0].values())).manifest.get("model", "") for at in (0, i)]
        comparisons.append(
            ArmComparison(
                names[0],
                names[i],
                contrasts,
                seeds,
                asked_otherwise=tuple(_differing(everything)),
                notes=notes,
                passes=tuple(find_passes(both, on)),
                settings=tuple(differing(*map(settings_of, models))),
                folders={name: each.folder for name, each in stored[0][0].items()},
            )
        )
    return comparisons


def _compare_data(arms: Sequence[str]) -> list[ArmComparison]:
    if len(arms) < 2:
        raise UserError("vlmrl compare: expected at least two results, got seeds of one")
    stored = [[read_evaluated(member) for member in arm.split(",")] for arm in arms]
    names, comparisons = _names(arms), []
    for i in range(1, len(arms)):
        (first, second), notes = pair((stored[0], stored[i]))
        comparisons.append(
            ArmComparison(
                names[0],
                names[i],
                (compare([e.result for e in first], [e.result for e in second]),),
                (len(first), len(second)),
                asked_otherwise=(),
                notes=tuple(notes),
                settings=tuple(differing(first[0].settings, second[0].settings)),
                evaluated=(first[0], second[0]),
            )
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
        for line in cautions(comparison):
            console.print(line, soft_wrap=True, highlight=False)
        for contrast in comparison.contrasts:
            console.print(_table(comparison, contrast))
            published = () if contrast.protocol == DATA else known_lines(contrast.benchmark)
            for line in published:
                console.print(line, soft_wrap=True, highlight=False, markup=False)
        for passes in comparison.passes:
            console.print(tabulate_passes(passes))
    for comparison in comparisons:
        for line in _settings(comparison):
            console.print(line, soft_wrap=True, highlight=False, markup=False)
    console.print(
        "In points, hundredths of a score. In brackets: 95 % intervals of the paired difference, "
        "clusters drawn whole."
    )
    if any(comparison.passes for comparison in comparisons):
        console.print("Of pass@k: intervals of each model alone, clusters drawn whole.")


def say_difference(difference: Difference, scale: float) -> str:
    """Return a difference in points and its interval, as far as there is one."""
    value, low, high = (
        f"{scale * number:+.1f}" for number in (difference.value, difference.low, difference.high)
    )
    return (
        f"{value} [{low}, {high}]" if difference.bounded else f"{value} [no interval: one cluster]"
    )


def _overall(contrast: Contrast, number: str) -> Difference:
    return next(d for d in contrast.differences if d.number == number and not d.column)


def _settings(comparison: ArmComparison) -> Iterator[str]:
    if comparison.settings:
        yield f"What differs between {comparison.first} and {comparison.second}:"
    for key, old, new in comparison.settings[:MAX_SETTINGS]:
        yield f"  {key}: {old[:60]} → {new[:60]}"
    if (more := len(comparison.settings) - MAX_SETTINGS) > 0:
        yield f"  and {more} more, on the page"


def cautions(comparison: ArmComparison) -> Iterator[str]:
    """Yield what a reader has to know beside the conclusion."""
    both = [c for c in comparison.contrasts if any(d.number == "strict" for d in c.differences)]
    if any(c.main.verdict != _overall(c, "strict").verdict for c in both):
        yield f"By the strict number: {conclude(comparison, 'strict')}"
    if comparison.asked_otherwise:
        yield f"The results differ not only in the model: {'; '.join(comparison.asked_otherwise)}"
    yield from comparison.notes
    for contrast in comparison.contrasts:
        if not contrast.main.bounded:
            yield f"{contrast.benchmark}: all rows are of one cluster, from which no interval can be had"
        if contrast.faulted:
            yield f"{contrast.benchmark}: {contrast.faulted} rows left out, the verifier failed on them"


def _table(comparison: ArmComparison, contrast: Contrast) -> Any:
    name = contrast.benchmark
    if contrast.protocol != DATA:
        name += f" ({contrast.protocol})"
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
