"""The offline page of an evaluation on benchmarks: its numbers, and answers with what was asked and drawn.

Rows on which the official and the strict number disagree come first: they say what a harness pays for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmrl.answers import templates
from vlmrl.benchmarking.base import BenchmarkCard
from vlmrl.benchmarking.scoring import RowScore
from vlmrl.config import ScoringConfig
from vlmrl.data.source import Source
from vlmrl.features.benchmarks.session import EvaluatedBenchmark
from vlmrl.features.benchmarks.tables import (
    extra_lines,
    known_lines,
    other_numbers,
    plain_truth,
    show,
)
from vlmrl.media.decode import decode
from vlmrl.pages.media import Album, MediaView, Shape, canvas_of, evenly, shapes, view
from vlmrl.pages.render import render
from vlmrl.runs.rollout_rows import store_media
from vlmrl.schema import Frame
from vlmrl.scoring.scorer import Scorer
from vlmrl.system.files import write_bytes
from vlmrl.truths.json_form import to_json

MAX_DISAGREEING = 60
"""Rows of a benchmark that are shown because the numbers disagree on them."""
MAX_OTHERS = 40
"""Other rows of a benchmark that are shown."""
MAX_BYTES = 40 * 2**20
"""Of all images on the page."""
MAX_TEXT = 3000
"""Characters of a text."""
APART = 0.5
"""Difference of the two numbers from which a row counts as one of disagreement."""


@dataclass(frozen=True)
class Guess:
    """The places and spans of an answer."""

    shapes: tuple[Shape, ...]


@dataclass(frozen=True)
class ResultCard:
    """A row with its answer, ready for the page."""

    benchmark: str
    kind: str
    row: RowScore
    question: str
    text: str
    views: tuple[MediaView, ...]
    truth_shapes: tuple[Shape, ...]
    attempts: tuple[Guess, ...]
    alone: int | None = None

    @property
    def truth(self) -> str:
        """Return the row's truth in plain text."""
        return plain_truth(self.row.truth)

    @property
    def has_spans(self) -> bool:
        """Return whether there is something to show on a timeline."""
        drawn = (*self.truth_shapes, *(s for attempt in self.attempts for s in attempt.shapes))
        return any(shape.kind == "span" for shape in drawn)


def write_result_page(evaluated: Sequence[EvaluatedBenchmark], out: Path) -> Path:
    """Write `report.html` into the output folder; the images are embedded in it."""
    album = Album(out / "media", MAX_BYTES)
    cards = [card for evaluation in evaluated for card in _cards(evaluation, out, album)]
    page = render(
        Path(__file__).parent,
        "benchmarks.html",
        "charts.js",
        "comparison.js",
        title=", ".join(evaluation.result.benchmark for evaluation in evaluated),
        tables=[_table(evaluation) for evaluation in evaluated],
        cards=cards,
        images=list(album.images.values()),
        benchmarks=[evaluation.result.benchmark for evaluation in evaluated],
        max_disagreeing=MAX_DISAGREEING,
        max_others=MAX_OTHERS,
    )
    return write_bytes(out / "report.html", page.encode("utf-8", "replace"))


def _table(evaluation: EvaluatedBenchmark) -> Mapping[str, Any]:
    """Lay out a benchmark's numbers: over all rows, of its controls, by group."""
    result = evaluation.result
    lines = [("all rows", str(len(result.rows)), *show(result, result.figures), False)]
    for more, numbers in other_numbers(result):
        lines.append((more, str(len(result.rows)), *show(result, numbers), False))
    for name, control in evaluation.controls.items():
        lines.append((name, str(len(control.rows)), *show(control, control.figures), True))
    for column, groups in result.groups.items():
        for value, figures in groups.items():
            count = str(max(figure.count for figure in figures.values()))
            lines.append((f"{column} {value}", count, *show(result, figures, within=True), True))
    about = (
        f"Asked and scored as {result.protocol}. {result.disagreeing} rows on which the numbers "
        f"disagree, {result.unread:.0%} unread, {result.truncated:.0%} cut at the limit of tokens."
    )
    notes = [*extra_lines(evaluation), *known_lines(result.benchmark)]
    return {"title": result.benchmark, "about": about, "lines": lines, "notes": notes}


def _cards(evaluation: EvaluatedBenchmark, out: Path, album: Album) -> Iterator[ResultCard]:
    rows = evaluation.result.rows
    apart = [row for row in rows if _disagree(row)]
    rest = [row for row in rows if not _disagree(row)]
    shown = [*evenly(apart, MAX_DISAGREEING), *evenly(rest, MAX_OTHERS)]
    for row, drawn in zip(
        shown, _drawn_answers(evaluation.source, evaluation.frames, shown), strict=True
    ):
        sample = evaluation.source.sample(row.index)
        decoded = decode(sample, evaluation.source.access, evaluation.source.reading)
        stored = store_media(out / "media", sample, decoded)
        views = tuple(view(medium, album) for medium in stored)
        canvas = canvas_of(views, sample.main_medium)
        yield ResultCard(
            evaluation.result.benchmark,
            "disagree" if _disagree(row) else "agree",
            row,
            sample.text[:MAX_TEXT],
            row.text[:MAX_TEXT],
            views,
            shapes(to_json(sample.truth), canvas),
            (Guess(shapes(drawn, canvas)),),
        )


def _disagree(row: RowScore) -> bool:
    both = row.official is not None and row.strict is not None
    return both and abs((row.official or 0.0) - (row.strict or 0.0)) > APART


def _drawn_answers(
    source: Source, frames: Mapping[int, Mapping[str, Any]], rows: Sequence[RowScore]
) -> list[Any]:
    """Return what the strict verifier, or the row's own, reads in each answer, as typed JSON."""
    assert isinstance(source.card, BenchmarkCard)
    reward = source.card.benchmark.strict.reward()
    samples = [source.sample(row.index) for row in rows]
    completions = [
        templates.completion(row.text, sample.template, Frame(**frames[row.index]))
        for row, sample in zip(rows, samples, strict=True)
    ]
    with Scorer({source.name: [reward]}, ScoringConfig(combine="mean")) as scorer:
        judged = scorer.judge([[completion] for completion in completions], samples, whole=False)
    return [to_json(next(iter(group[0].verdicts.values())).answer) for group in judged]
