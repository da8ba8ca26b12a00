"""The contract of a public benchmark: one short file under `benchmarks/` that declares, and computes nothing.

A benchmark says where its published data is and in which layout, how each harness asks, how each
harness scores (by the name of an official scorer), and by which strict verifier we judge. One
generation serves both numbers.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from vlmrl import plugins
from vlmrl.benchmarking.official import SCORERS
from vlmrl.config import RewardConfig
from vlmrl.data.cards.card import Card
from vlmrl.data.files.opening import open_rows
from vlmrl.data.files.rows import WHERE
from vlmrl.errors import UserError
from vlmrl.plugins import nearest
from vlmrl.schema import Media, Sample

__all__ = ["INDEX", "OURS", "Benchmark", "BenchmarkCard", "Official", "Strict", "open_benchmark"]

INDEX = "__index__"
"""Key of a row, and of a sample's `meta`, with the number of the row in its split."""

OURS = "ours"
"""The protocol of our own prompt: the plain question, and the template's instruction."""


@dataclass(frozen=True)
class Official:
    """How a harness asks and scores: `name@version` is the protocol.

    `ask` is its prompt, with `{question}`, `{capitalized}` (as Python capitalizes it: the rest in
    lower case), `{options}` (lines `A. text`) and `{letters}` (`A, B`); `max_tokens` its limit.
    `scorer` names one of `vlmrl.benchmarking.official`. `aggregate` names one of
    `vlmrl.benchmarking.aggregates`, `by` the column it takes means over. `unread` says what an
    answer scores in which the rule finds nothing: `wrong`, or `expected` where the harness draws an
    option at random, which is the chance to be right. `unit` is how the harness prints the number;
    `also` names more aggregates to print, `without` is a text to take out of the question.
    """

    protocol: str
    ask: str
    max_tokens: int
    scorer: str
    aggregate: str = "mean"
    by: str = ""
    unread: Literal["wrong", "expected"] = "wrong"
    unit: Literal["fraction", "percent", "sum"] = "fraction"
    also: tuple[str, ...] = ()
    without: str = ""


@dataclass(frozen=True)
class Strict:
    """The verifier that cannot be gamed, with its options, and the aggregate of its scores."""

    verifier: str
    options: Mapping[str, Any]
    aggregate: str = "mean"
    by: str = ""

    def reward(self) -> RewardConfig:
        """Return the verifier as a reward, as a config names it."""
        return RewardConfig(verifier=self.verifier, options=dict(self.options))


@dataclass(frozen=True)
class Benchmark:
    """Base of benchmarks. A subclass declares the class variables; `path` is the only option.

    Class variables: `origin`, `licence`, `hub` (id of the published data), `split`, `count` (rows
    of the split; another number is an error), `columns` (our key -> column of the published layout,
    as in the card `table`), `box_space`, `box_format`, `cluster` (column that rows share which are
    not independent, such as their image; empty: every row for itself), `groups` (columns by which
    results are reported), `officials` and `strict`.
    """

    origin: ClassVar[str] = ""
    licence: ClassVar[str] = ""
    hub: ClassVar[str] = ""
    split: ClassVar[str] = "test"
    count: ClassVar[int] = 0
    columns: ClassVar[Mapping[str, str]] = {}
    box_space: ClassVar[str | None] = None
    box_format: ClassVar[str] = "xyxy"
    cluster: ClassVar[str] = ""
    groups: ClassVar[tuple[str, ...]] = ()
    officials: ClassVar[tuple[Official, ...]] = ()
    strict: ClassVar[Strict]

    path: str
    """A local copy of the published data: a folder with the files of the split, or one file."""

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a row of the published layout with every value in a column of its own."""
        return row

    def protocols(self) -> tuple[str, ...]:
        """Return the protocols by which this benchmark can be run."""
        return (*(one.protocol for one in self.officials), OURS)

    def official(self, protocol: str) -> Official | None:
        """Return how a harness asks and scores, None for `ours`.

        `lmms_eval` means the one version of it that there is.

        Raises:
            UserError: this benchmark has no such protocol; the message names those it has.
        """
        if protocol == OURS:
            return None
        fits = [o for o in self.officials if protocol in (o.protocol, o.protocol.split("@")[0])]
        if len(fits) != 1:
            known = ", ".join(self.protocols())
            raise UserError(
                f"benchmark {name_of(self)!r} has no protocol {protocol!r}; it has: {known}"
            )
        return fits[0]


class BenchmarkCard(Card):
    """A benchmark as a card: its rows as samples, asked by one protocol."""

    def __init__(self, benchmark: Benchmark, protocol: str) -> None:
        """Map the columns by the card `table`."""
        self.benchmark = benchmark
        self.official = benchmark.official(protocol)
        self.table: Card = plugins.build(
            "card",
            "table",
            {
                "path": benchmark.path,
                "columns": dict(benchmark.columns),
                "box_space": benchmark.box_space,
                "box_format": benchmark.box_format,
            },
        )

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Return the rows of the benchmark's split.

        Raises:
            UserError: there are none, or a column of the published layout is missing.
        """
        rows = _Adapted(self.benchmark, open_rows(Path(self.benchmark.path), split))
        there = rows[0] if len(rows) else {}
        for key, column in self.benchmark.columns.items():
            if there and column not in there:
                raise UserError(
                    f"{self.benchmark.path}: expected column {column!r} ({key} of benchmark "
                    f"{name_of(self.benchmark)!r}), got {', '.join(sorted(there))}"
                )
        return rows

    def to_sample(self, row: Mapping[str, Any], source: str) -> Sample:
        """Return a row as a sample that is asked by the protocol."""
        sample = self.table.to_sample(row, source)
        sample = replace(sample, meta={**sample.meta, INDEX: row[INDEX]})
        if self.official is None:
            return sample
        media = tuple(part for part in sample.parts if isinstance(part, Media))
        return replace(sample, parts=(*media, _ask(self.official, sample)), template="none")

    def media_root(self) -> str | None:
        """Return the folder of the data."""
        return self.table.media_root()


class _Adapted(Sequence[Mapping[str, Any]]):
    """Rows in which every value has a column of its own."""

    def __init__(self, benchmark: Benchmark, rows: Sequence[Mapping[str, Any]]) -> None:
        self._benchmark, self._rows = benchmark, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        row = self._rows[index]
        return {**self._benchmark.adapt(row), WHERE: row[WHERE], INDEX: index}


def open_benchmark(name: str, path: str) -> Benchmark:
    """Return a benchmark by name, reading its data from `path`.

    Raises:
        UserError: there is no such benchmark; the message suggests the nearest name.
    """
    found = plugins.build("benchmark", name, {"path": path})
    if not isinstance(found, Benchmark):
        raise UserError(f"benchmark {name!r}: expected a Benchmark, got {type(found).__name__}")
    for official in found.officials:
        if official.scorer not in SCORERS:
            raise UserError(
                f"benchmark {name!r}: no official scorer is named {official.scorer!r}"
                f"{nearest(official.scorer, list(SCORERS))}"
            )
    return found


def name_of(benchmark: Benchmark) -> str:
    """Return the name of a benchmark: that of its file."""
    return type(benchmark).__module__.rpartition(".")[2]


def _ask(official: Official, sample: Sample) -> str:
    """Return the prompt of a harness for a sample; braces in the data stay as they are."""
    question = " ".join(part for part in sample.parts if isinstance(part, str))
    question = question.replace(official.without, "") if official.without else question
    options = sample.truth.options or ()
    lettered = zip(string.ascii_uppercase, options, strict=False)
    filled = {
        "question": question,
        "capitalized": question.capitalize(),
        "options": "\n".join(f"{letter}. {text}" for letter, text in lettered),
        "letters": ", ".join(string.ascii_uppercase[: len(options)]),
    }
    return re.sub(r"\{(\w+)\}", lambda mark: filled[mark[1]], official.ask)
