"""From stored answers to a benchmark's result: official and strict number, each with its interval."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vlmrl.answers import templates
from vlmrl.benchmarking.aggregates import Rows, estimate
from vlmrl.benchmarking.base import OURS, Benchmark, Official, name_of
from vlmrl.benchmarking.official import SCORERS
from vlmrl.config import ScoringConfig
from vlmrl.data.source import Source
from vlmrl.schema import Completion, FinishReason, Frame, Sample
from vlmrl.scoring.scorer import Scorer

__all__ = ["Answer", "Figure", "Result", "RowScore", "score_answers", "write_table"]

BATCH = 256


@dataclass(frozen=True, slots=True)
class Answer:
    """A stored answer: the row it answers, the completion's text, and the frame of its coordinates."""

    index: int
    text: str
    tokens: int
    finish_reason: FinishReason
    frame: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RowScore:
    """What one answer scored. `official` is None for the protocol `ours`, `strict` for a fault."""

    index: int
    id: str
    cluster: str
    groups: Mapping[str, str]
    text: str
    answer: str | None
    official: float | None
    strict: float | None
    read: bool
    finish_reason: str


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with its 95 % interval, over `count` rows."""

    value: float
    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True)
class Result:
    """A benchmark's result by one protocol. `groups` is column -> value -> figures by number."""

    benchmark: str
    protocol: str
    unit: str
    """How the harness prints the number: `fraction`, `percent` or `sum`."""
    figures: Mapping[str, Figure]
    groups: Mapping[str, Mapping[str, Mapping[str, Figure]]]
    unread: float
    """Share of answers in which the official rule found nothing."""
    truncated: float
    """Share of answers that reached the limit of tokens."""
    disagreeing: int
    """Rows on which official and strict number differ by more than 0.5."""
    rows: Sequence[RowScore]

    def to_json(self) -> dict[str, Any]:
        """Return everything but the rows."""
        return {key: value for key, value in asdict(self).items() if key != "rows"}


def score_answers(
    benchmark: Benchmark, source: Source, protocol: str, answers: Sequence[Answer]
) -> Result:
    """Score stored answers to the rows of a benchmark's source.

    The official rule is given what the strict verifier sees as well: the answer without the thought
    and its tags. An answer without any is an empty text to it.

    Raises:
        UserError: more faults of the strict verifier than the scorer allows.
    """
    official = benchmark.official(protocol)
    rows, said, right = [], [], []
    reward = benchmark.strict.reward()
    with Scorer({source.name: [reward]}, ScoringConfig(combine="mean")) as scorer:
        for some in _batches(answers):
            samples = [source.sample(one.index) for one in some]
            completions = [_completion(*pair) for pair in zip(some, samples, strict=True)]
            judged = scorer.judge([[c] for c in completions], samples, whole=False)
            for one, sample, completion, verdicts in zip(
                some, samples, completions, judged, strict=True
            ):
                verdict = verdicts[0].verdicts[reward.verifier]
                row, words = _score_row(benchmark, official, one, sample, completion, verdict.score)
                rows.append(row)
                said.append(words)
                right.append((sample.truth.text or ("",))[0].strip().lower())
    return _sum_up(benchmark, official, rows, said, right)


def write_table(path: Path, rows: Iterable[RowScore]) -> None:
    """Write the scored rows as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["index", "id", "official", "strict", "read", "finish_reason", "answer"])
        for row in rows:
            table.writerow(
                [
                    row.index,
                    row.id,
                    row.official,
                    row.strict,
                    row.read,
                    row.finish_reason,
                    row.answer,
                ]
            )


def _batches(answers: Sequence[Answer]) -> Iterator[Sequence[Answer]]:
    return (answers[start : start + BATCH] for start in range(0, len(answers), BATCH))


def _completion(answer: Answer, sample: Sample) -> Completion:
    frame = Frame(**answer.frame)
    return templates.completion(
        answer.text, sample.template, frame, finish_reason=answer.finish_reason
    )


def _score_row(
    benchmark: Benchmark,
    official: Official | None,
    answer: Answer,
    sample: Sample,
    completion: Completion,
    strict: float | None,
) -> tuple[RowScore, str]:
    """Return the score of a row and what the official rule read."""
    value, read, said = None, True, ""
    if official is not None:
        found = SCORERS[official.scorer](completion.answer or "", sample, completion.frame)
        read, said = found.read, found.said
        drawn = official.unread == "expected" and not found.read
        value = found.chance if drawn else found.value
    groups = {column: str(sample.meta.get(column, "")) for column in _columns(benchmark, official)}
    cluster = str(sample.meta.get(benchmark.cluster, "")) if benchmark.cluster else sample.id
    row = RowScore(
        *(answer.index, sample.id, cluster, groups, answer.text, completion.answer),
        *(value, strict, read, completion.finish_reason),
    )
    return row, said


def _columns(benchmark: Benchmark, official: Official | None) -> list[str]:
    numbers = _numbers(benchmark, official).values()
    by = [column for _, column in numbers]
    return [*dict.fromkeys(column for column in (*benchmark.groups, *by) if column)]


def _numbers(benchmark: Benchmark, official: Official | None) -> dict[str, tuple[str, str]]:
    """Return the numbers to report: their aggregate and the column that it groups by."""
    found = {}
    for kind, one in (("official", official), ("strict", benchmark.strict)):
        if one is not None:
            found[kind] = (one.aggregate, one.by)
    for kind, one in (("official", official), ("strict", benchmark.strict)):
        for name in one.also if one is not None else ():
            aggregate, _, by = name.partition(" by ")
            found[f"{kind} {name}"] = (aggregate, by)
    return found


def _sum_up(
    benchmark: Benchmark,
    official: Official | None,
    rows: Sequence[RowScore],
    said: Sequence[str],
    right: Sequence[str],
) -> Result:
    numbers = _numbers(benchmark, official)
    groups: dict[str, dict[str, dict[str, Figure]]] = {}
    for column in benchmark.groups:
        values = sorted({row.groups[column] for row in rows})
        means = {name: ("mean", "") for name in numbers if name in ("official", "strict")}
        groups[column] = {
            value: _figures(means, rows, said, right, [row.groups[column] == value for row in rows])
            for value in values
        }
    pairs = [(row.official, row.strict) for row in rows]
    return Result(
        name_of(benchmark),
        official.protocol if official else OURS,
        official.unit if official else "fraction",
        _figures(numbers, rows, said, right, [True] * len(rows)),
        groups,
        unread=sum(not row.read for row in rows) / len(rows),
        truncated=sum(row.finish_reason == "length" for row in rows) / len(rows),
        disagreeing=sum(None not in (a, b) and abs(a - b) > 0.5 for a, b in pairs),  # type: ignore[operator]
        rows=rows,
    )


def _figures(
    numbers: Mapping[str, tuple[str, str]],
    rows: Sequence[RowScore],
    said: Sequence[str],
    right: Sequence[str],
    chosen: Sequence[bool],
) -> dict[str, Figure]:
    """Return the figures of the chosen rows; a row whose number is a fault is left out of it."""
    found = {}
    for name, (aggregate, by) in numbers.items():
        scores = [row.strict if name.startswith("strict") else row.official for row in rows]
        here = [ok and score is not None for ok, score in zip(chosen, scores, strict=True)]
        if not any(here):
            continue
        kept = Rows(
            np.array(list(itertools.compress(scores, here)), float),
            [row.groups.get(by, "") for row in itertools.compress(rows, here)],
            list(itertools.compress(said, here)),
            list(itertools.compress(right, here)),
        )
        clusters = [row.cluster for row in itertools.compress(rows, here)]
        found[name] = Figure(*estimate(aggregate, kept, clusters), count=sum(here))
    return found
