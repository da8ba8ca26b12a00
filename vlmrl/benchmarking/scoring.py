"""From stored answers to a benchmark's result: official and strict number, each with its interval."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from vlmrl.answers import templates
from vlmrl.benchmarking.aggregates import (
    CORRELATIONS,
    PARTS,
    WITHIN_A_GROUP,
    Detections,
    Rows,
    estimate,
)
from vlmrl.benchmarking.base import OURS, Benchmark, Official, name_of
from vlmrl.benchmarking.scorers import SCORERS
from vlmrl.benchmarking.scorers.boxes import listed_boxes
from vlmrl.config import ScoringConfig
from vlmrl.data.source import Source
from vlmrl.errors import UserError
from vlmrl.schema import CUT, Completion, FinishReason, Frame, Sample, Verdict
from vlmrl.scoring.scorer import Scorer
from vlmrl.system import files
from vlmrl.truths.json_form import to_json

BATCH = 256
MAX_TRUTH = 600
"""Characters of a stored truth: masks may have many."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A stored answer: the row it answers, the completion's text, and the frame of its coordinates."""

    index: int
    text: str
    tokens: int
    finish_reason: FinishReason
    frame: Mapping[str, Any]
    calls: Sequence[Mapping[str, Any]] = ()
    """The calls of tools before it, in order: the turn, counted from 0, and the fields of `Call`."""


@dataclass(frozen=True, slots=True)
class RowScore:
    """What one answer scored. `strict` is None for a fault.

    `official` is None for the protocol `ours`, and where the harness leaves the answer out.

    `read` says whether the official rule found an answer, for the protocol `ours` whether the strict
    verifier did. `said` is what the official rule read and `right` the first accepted text, for aggregates
    that count words. A long `truth` is cut and ends with its hash.
    """

    index: int
    id: str
    cluster: str
    groups: Mapping[str, str]
    official: float | None
    strict: float | None
    read: bool
    finish_reason: str
    said: str
    right: str
    text: str
    answer: str | None
    question: str
    truth: str
    details: Mapping[str, Any] = field(default_factory=dict)
    """What some aggregates need besides: `official` and `strict` -> the boxes, the verdict's parts, or
    the stated and the true number; `calls` -> those of its answer, where it made any."""

    @property
    def name(self) -> str:
        """Return what to call the row: its id, or its number where the data state none but a file."""
        return f"row {self.index}" if "/" in self.id else self.id

    def score(self, number: str) -> float | None:
        """Return what counts for a number: `official`, `strict`, or one that is named after them."""
        return self.strict if number.startswith("strict") else self.official


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with its 95 % interval, over `count` rows; the bounds are None if these are too few."""

    value: float
    low: float | None
    high: float | None
    count: int


@dataclass(frozen=True, slots=True)
class Result:
    """A benchmark's result by one protocol. `groups` is column -> value -> figures by number."""

    benchmark: str
    protocol: str
    unit: str
    """How the harness prints the number: `fraction`, `percent` or `sum`."""
    numbers: Mapping[str, tuple[str, str]]
    """For each number its aggregate and the column it takes means over."""
    figures: Mapping[str, Figure]
    groups: Mapping[str, Mapping[str, Mapping[str, Figure]]]
    unread: float
    """Share of answers in which the official rule, or without one the strict verifier, found nothing."""
    truncated: float
    """Share of answers that reached the limit of tokens."""
    disagreeing: int
    """Rows on which official and strict number differ by more than 0.5."""
    rows: Sequence[RowScore]
    lower_bound: bool = False
    """Whether the harness asks a judge about answers that count as wrong in the official number here."""
    note: str = ""
    """What is to be said wherever the official number is printed: without a judge, or by which one."""
    tagged: float = 0.0
    """Share of answers with tags of shipped templates that their own does not know."""


def score_answers(
    benchmark: Benchmark, source: Source, protocol: str, answers: Sequence[Answer]
) -> Result:
    """Score stored answers to the rows of a benchmark's source.

    The official rule is given what the strict verifier sees as well: the answer without the thought
    and its tags, but for rules that look for tags themselves. An answer without any is an empty text to
    it. A row that names a verifier of its own is judged by that one.

    Raises:
        UserError: more faults of the strict verifier than the scorer allows.
    """
    official = benchmark.official(protocol)
    rows, tagged = [], 0
    reward = benchmark.strict.reward()
    with Scorer({source.name: [reward]}, ScoringConfig(combine="mean")) as scorer:
        for start in range(0, len(answers), BATCH):
            some = answers[start : start + BATCH]
            samples = [source.sample(answer.index) for answer in some]
            completions = [
                templates.completion(
                    answer.text,
                    sample.template,
                    Frame(**answer.frame),
                    finish_reason=answer.finish_reason,
                )
                for answer, sample in zip(some, samples, strict=True)
            ]
            judged = scorer.judge([[c] for c in completions], samples, whole=False)
            for answer, sample, completion, verdicts in zip(
                some, samples, completions, judged, strict=True
            ):
                (verdict,) = verdicts[0].verdicts.values()
                row = score_row(benchmark, official, answer.index, sample, completion, verdict)
                called = {"calls": answer.calls} if answer.calls else {}
                rows.append(replace(row, details={**row.details, **called}))
                # A rule that is given the whole completion looks for the tags itself.
                wanted = official is not None and official.whole
                tagged += not wanted and templates.has_unknown_tags(answer.text, sample.template)
    return replace(sum_up(benchmark, official, rows), tagged=tagged / len(rows))


def score_row(
    benchmark: Benchmark,
    official: Official | None,
    index: int,
    sample: Sample,
    completion: Completion,
    verdict: Verdict,
) -> RowScore:
    """Score one answer by the official rule; the strict score is that of the verifier's verdict."""
    value, read, reading = None, _has_read(verdict), ""
    details: dict[str, Any] = {}
    if benchmark.strict.verifier == "detection":
        details["strict"] = listed_boxes(completion.answer or "", sample, completion.frame)
    elif benchmark.strict.aggregate in CORRELATIONS:
        details["strict"] = (verdict.answer, sample.truth.number)
    elif not PARTS.keys().isdisjoint(benchmark.strict.also):
        details["strict"] = dict(verdict.parts)
    if official is not None:
        reply = completion.text if official.whole else completion.answer or ""
        score = SCORERS[official.scorer](reply, sample, completion.frame)
        read, reading = score.read, score.reading
        if score.detail is not None:
            details["official"] = score.detail
        drawn = official.unread == "expected" and not score.read
        value = score.chance if drawn else score.value
    by = [column for _, column in _numbers(benchmark, official).values() if column]
    groups = {column: str(sample.meta.get(column, "")) for column in (*benchmark.groups, *by)}
    truth = json.dumps(to_json(sample.truth), ensure_ascii=False)
    if len(truth) > MAX_TRUTH:  # its hash still tells it from another
        truth = f"{truth[:MAX_TRUTH]} sha256:{hashlib.sha256(truth.encode()).hexdigest()[:16]}"
    return RowScore(
        index=index,
        id=sample.id,
        cluster=str(sample.meta.get(benchmark.cluster, "")) if benchmark.cluster else sample.id,
        groups=groups,
        official=value,
        strict=verdict.score,
        read=read,
        finish_reason=completion.finish_reason,
        said=reading,
        right=(sample.truth.text or ("",))[0].strip().lower(),
        text=completion.text,
        answer=completion.answer,
        question=sample.text,
        truth=truth,
        details=details,
    )


def _has_read(verdict: Verdict) -> bool:
    """Return whether a verifier found an answer; one that failed does not know that there was none."""
    return bool(verdict.fault or verdict.score) or verdict.answer not in (None, "", ())


def _numbers(benchmark: Benchmark, official: Official | None) -> dict[str, tuple[str, str]]:
    """Return the numbers to report: their aggregate and the column that it groups by."""
    rules = {"official": official, "strict": benchmark.strict}
    numbers = {kind: (rule.aggregate, rule.by) for kind, rule in rules.items() if rule is not None}
    for kind, rule in rules.items():
        for name in rule.also if rule is not None else ():
            aggregate, _, by = name.partition(" by ")
            numbers[f"{kind} {name}"] = (aggregate, by)
    return numbers


def sum_up(benchmark: Benchmark, official: Official | None, rows: Sequence[RowScore]) -> Result:
    """Sum up scored rows: the figures over all and by group, each with its interval."""
    numbers = _numbers(benchmark, official)
    means = {
        name: (WITHIN_A_GROUP.get(how, "mean"), "")
        for name, (how, _) in numbers.items()
        if name in ("official", "strict")
    }
    groups = {
        column: {value: _figures(means, some) for value, some in group_rows(rows, column).items()}
        for column in benchmark.groups
    }
    pairs = [(row.official, row.strict) for row in rows]
    judge = official.judge if official and not all(row.read for row in rows) else ""
    return Result(
        name_of(benchmark),
        official.protocol if official else OURS,
        official.unit if official else "fraction",
        numbers,
        _figures(numbers, rows),
        groups,
        unread=sum(not row.read for row in rows) / len(rows),
        truncated=sum(row.finish_reason in CUT for row in rows) / len(rows),
        disagreeing=sum(None not in (a, b) and abs(a - b) > 0.5 for a, b in pairs),  # type: ignore[operator]
        rows=rows,
        lower_bound=bool(judge),
        note=f"lower bound without a judge ({judge})" if judge else "",
    )


def group_rows(rows: Sequence[RowScore], column: str) -> dict[str, list[RowScore]]:
    """Return the rows by their value in a column of groups, in the order of the values."""
    groups: dict[str, list[RowScore]] = {}
    for row in sorted(rows, key=lambda row: row.groups[column]):
        groups.setdefault(row.groups[column], []).append(row)
    return groups


def rows_of(number: str, by: str, rows: Sequence[RowScore]) -> Rows:
    """Return what an aggregate needs of rows without a fault in this number."""
    return Rows(
        np.array([row.score(number) for row in rows], float),
        [row.groups.get(by, "") for row in rows],
        [row.said for row in rows],
        [row.right for row in rows],
        [row.details.get(number.partition(" ")[0]) for row in rows],
    )


def _figures(numbers: Mapping[str, tuple[str, str]], rows: Sequence[RowScore]) -> dict[str, Figure]:
    """Return the figures of some rows; a row whose number is a fault is left out of it."""
    figures = {}
    for name, (aggregate, by) in numbers.items():
        kept = [row for row in rows if row.score(name) is not None]
        if kept:
            clusters = [row.cluster for row in kept]
            estimated = estimate(aggregate, rows_of(name, by, kept), clusters)
            figures[name] = Figure(*estimated, count=len(kept))
    return figures


# --------------------------------------------------------------------------------------------------
# A benchmark's result as files: `result.json` with the numbers, `rows.csv` with every row.
#
# The rows hold all that the aggregates need, so that results are compared without data or model.


RESULT, ROWS, CONTROLS = "result.json", "rows.csv", "controls.json"
ANSWERS = "answers.jsonl"
GROUP = "group "
"""Begins the column of a group."""
MAX_FIELD = 2**24
"""Longest text in a table, characters."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A result with the folder it was read from, and how it came about."""

    folder: Path
    result: Result
    manifest: Mapping[str, Any]
    passes: Mapping[int, Figure] = field(default_factory=dict)
    """pass@k by k; empty if no answers were sampled."""


def write_result(folder: Path, result: Result, manifest: Mapping[str, object]) -> None:
    """Write a result with its manifest, and its rows."""
    numbers = asdict(replace(result, rows=()))
    del numbers["rows"]
    files.write_json(folder / RESULT, {**numbers, "manifest": manifest})
    groups = list(result.rows[0].groups) if result.rows else []
    plain = [name for name in RowScore.__dataclass_fields__ if name not in ("groups", "details")]

    def write(path: Path) -> None:
        with path.open("w", newline="", encoding="utf-8", errors="replace") as file:
            table = csv.writer(file)
            table.writerow([*plain, *(GROUP + name for name in groups), "details"])
            for row in result.rows:
                values = [getattr(row, name) for name in plain]
                details = json.dumps(row.details, default=Detections.to_json)
                table.writerow([*values, *(row.groups[name] for name in groups), details])

    files.write_whole(folder / ROWS, write)


def read_result(folder: Path) -> Stored:
    """Read what `write_result` wrote.

    Raises:
        UserError: there is no result, or it is of an older version or damaged.
    """
    csv.field_size_limit(MAX_FIELD)
    try:
        numbers = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        with (folder / ROWS).open(newline="", encoding="utf-8") as file:
            rows = [_row(line) for line in csv.DictReader(file)]
        manifest = numbers.pop("manifest")
        figures = _read_figures(numbers.pop("figures"))
        groups = {
            column: {value: _read_figures(each) for value, each in values.items()}
            for column, values in numbers.pop("groups").items()
        }
        aggregates = {name: tuple(how) for name, how in numbers.pop("numbers").items()}
        controls = folder / CONTROLS
        sampled = json.loads(controls.read_bytes())["pass_at_k"] if controls.is_file() else {}
        passes = {int(k): figure for k, figure in _read_figures(sampled).items()}
        result = Result(**numbers, figures=figures, groups=groups, numbers=aggregates, rows=rows)
    except OSError as error:
        raise UserError(
            f"{folder}: expected the result of a benchmark: {error.strerror}"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, csv.Error) as error:
        raise UserError(
            f"{folder}: expected a result of this version of vlmrl, got {type(error).__name__}: "
            f"{error}; `vlmrl eval` with the same --out scores the stored answers again"
        ) from error
    return Stored(folder, result, manifest, passes)


def find_results(path: Path) -> dict[str, Stored]:
    """Return the results in a folder by benchmark (`name`, or `name:split`): its own, or those in it.

    Raises:
        UserError: there is none.
    """
    folders = (
        [path] if (path / RESULT).is_file() else sorted(p.parent for p in path.glob(f"*/{RESULT}"))
    )
    if not folders:
        raise UserError(f"{path}: expected {RESULT} here or in a folder below, got none")
    stored = [read_result(folder) for folder in folders]
    return {each.manifest.get("benchmark", each.result.benchmark): each for each in stored}


def _read_figures(figures: Mapping[str, Mapping[str, Any]]) -> dict[str, Figure]:
    return {name: Figure(**figure) for name, figure in figures.items()}


def _row(line: Mapping[str, str]) -> RowScore:
    groups = {key.removeprefix(GROUP): v for key, v in line.items() if key.startswith(GROUP)}
    plain: dict[str, Any] = {key: v for key, v in line.items() if not key.startswith(GROUP)}
    details = json.loads(plain.pop("details"))
    for name in ("official", "strict"):
        plain[name] = float(plain[name]) if plain[name] else None
    plain |= {"index": int(plain["index"]), "read": plain["read"] == "True"}
    plain["answer"] = plain["answer"] or None
    parsed = {k: Detections.from_json(v) if "found" in v else v for k, v in details.items()}
    return RowScore(groups=groups, **plain, details=parsed)
