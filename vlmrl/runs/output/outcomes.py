"""What commands but `train` come to: events, as those in `events`, each the outcome of a command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vlmrl.runs.console import describe_interval
from vlmrl.runs.output.events import Event, Interval, Line

__all__ = ["Benchmarked", "Demonstrated", "Rated", "Reported", "Scored", "kinds"]


def kinds() -> dict[str, type[Event]]:
    """Return every kind of event by its name."""
    return {event.kind: event for event in Event.__subclasses__()}


@dataclass(frozen=True)
class Scored(Event):
    """The result of `vlmrl eval --data`."""

    kind = "result"
    always = True

    model: str
    data: str
    samples: int
    metrics: Mapping[str, float]
    """By the names of an evaluation."""
    intervals: Mapping[str, Interval]
    """The 95 % interval of each."""
    pass_at_k: Mapping[str, float] | None
    """By k; null without `--samples`."""

    def lines(self) -> list[Line]:
        """Return a line for each metric, as a table."""
        rows: list[Line] = [
            [f"{name:32} {value:.4f}  {describe_interval(self.intervals[name], 4)}"]
            for name, value in self.metrics.items()
        ]
        rows += [[f"{'pass@' + k:32} {v:.4f}"] for k, v in (self.pass_at_k or {}).items()]
        return [*rows, [f"{self.samples} samples; in brackets: 95 % intervals"]]


@dataclass(frozen=True)
class Benchmarked(Event):
    """The result of one benchmark of `vlmrl eval --benchmark`, as soon as it is there."""

    kind = "benchmark"
    always = True

    benchmark: str
    protocol: str
    """Whose prompt was asked, and whose rule gives the official number."""
    rows: int
    figures: Mapping[str, Mapping[str, float]]
    """`official`, `strict` and others: `value`, its 95 % interval from `low` to `high`, `count` of rows."""
    unit: str
    """How the harness prints its numbers: `fraction`, `percent` or `sum`."""
    shown: Mapping[str, str]
    """`official` and `strict` in this unit, with their intervals."""
    lower_bound: bool
    """Whether the official number is one: a judge would have to read some answers."""
    unread: float
    """Share of answers that the official rule cannot read."""
    truncated: float
    """Share of answers that ended at the limit of tokens."""
    disagreeing: int
    """Answers on which the official and the strict number disagree."""
    controls: Mapping[str, Mapping[str, Mapping[str, float]]]
    """By control its `figures`."""
    pass_at_k: Mapping[str, Mapping[str, float]]
    """By k, as `figures`; empty without `--samples`."""
    notes: Sequence[str]
    """What belongs to the numbers, in words: what is left out, calls, best constant answers, overlap."""
    folder: Path
    """Where `result.json`, `rows.csv` and the answers are."""

    def lines(self) -> list[Line]:
        """Return the numbers in one line, and the notes."""
        numbers = [f"{name} {shown}" for name, shown in self.shown.items()]
        shares = [f"unread {self.unread:.0%}", f"cut {self.truncated:.0%}"]
        disagree = f"disagree {self.disagreeing}"
        summary = [self.benchmark, *numbers, f"{self.rows} rows", *shares, disagree]
        return [summary, *([note] for note in self.notes)]


@dataclass(frozen=True)
class Reported(Event):
    """The page of the results of all benchmarks is written."""

    kind = "report"
    always = True

    page: Path

    def lines(self) -> list[Line]:
        """Return where it is."""
        return [[f"report: {self.page}"]]


@dataclass(frozen=True)
class Rated(Event):
    """The result of `vlmrl data rate`; of the rows so far where `interrupted` follows."""

    kind = "rated"
    always = True

    file: Path
    finished: bool
    """Whether all rows are done."""
    rows: int
    """Rows in the file."""
    mean: float | None
    """Mean pass rate of the rows that could be rated; null if none could."""
    solved: Mapping[str, int]
    """Rows whose completions passed `never`, `sometimes` or `always`."""
    not_rated: int
    """Rows that could not be rated."""
    faults: Sequence[str]
    """The first ten of them, each with the reason; the file names all."""

    def lines(self) -> list[Line]:
        """Return rows that could not be rated, the counts and the mean."""
        mean = "" if self.mean is None else f", mean pass rate {self.mean:.3f}"
        return [
            *([f"not rated: {fault}"] for fault in self.faults),
            [f"{self.file}: {self.rows} rows, {self.not_rated} not rated{mean}"],
            [", ".join(f"{how} {count}" for how, count in self.solved.items())],
        ]


@dataclass(frozen=True)
class Demonstrated(Event):
    """The result of `vlmrl data demonstrate`; of the rows so far where `interrupted` follows."""

    kind = "demonstrated"
    always = True

    file: Path
    finished: bool
    """Whether all rows are done."""
    rows: int
    """Rows in the file."""
    kept: int
    """Rows of which an answer is kept."""
    dropped: Mapping[str, int]
    """The ten commonest reasons for which none is, each with its rows."""
    named: Sequence[str]
    """The first ten rows without an answer, each with the reason; the file names all."""

    def lines(self) -> list[Line]:
        """Return rows without an answer, the counts and the reasons."""
        none = self.rows - self.kept
        return [
            *([f"dropped: {row}"] for row in self.named),
            [f"{self.file}: {self.rows} rows, {self.kept} kept, {none} dropped"],
            *([f"  {count} rows: {reason}"] for reason, count in self.dropped.items()),
        ]
