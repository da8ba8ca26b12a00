"""What commands say while they work, and a run at its end: one class for each kind of event.

The fields are what `--json` writes. The lines are what people read; each is a sequence of parts, the most
important first, between which a terminal breaks it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from vlmrl.runs.output.words import describe_interval, duration, number, step_parts

Line = Sequence[str]
Interval = tuple[float | None, float | None]


@dataclass(frozen=True)
class Event:
    """Something that a command says."""

    kind: ClassVar[str]
    """Its name in the output of `--json`."""
    always: ClassVar[bool] = False
    """Whether `--quiet` says it, too."""
    aside: ClassVar[bool] = False
    """Whether people read it on standard error: it is no part of the command's result."""

    def lines(self) -> list[Line]:
        """Return what people read; empty if this is for programs alone."""
        return []


@dataclass(frozen=True)
class Started(Event):
    """A run begins, or goes on."""

    kind = "started"

    run: str
    """Its name."""
    algorithm: str
    folder: Path
    """The run folder."""
    step: int
    """Steps that are done already."""
    steps: int
    """Steps that it is to have."""

    def lines(self) -> list[Line]:
        """Return the title."""
        going_on = f", going on after step {self.step}" if self.step else ""
        return [[f"{self.run} · {self.algorithm} · {self.folder}{going_on}"]]


@dataclass(frozen=True)
class Doing(Event):
    """Something that may take long has begun, goes on (every ten seconds), or has ended."""

    kind = "doing"
    aside = True

    what: str
    """What is done, e.g. `loading model`."""
    done: int
    """Rows done."""
    total: int | None
    """Rows to do; null if nothing can be counted."""
    seconds: float
    """Seconds since it began."""
    ended: bool
    rate: float | None
    """Rows a second since it began; null before the first."""
    left_s: float | None
    """Seconds left at this rate; null if the rate or `total` is unknown."""

    def lines(self) -> list[Line]:
        """Return the progress, with rate and time left if they are known."""
        counted = "" if self.total is None else f": {self.done} of {self.total} rows"
        passed = [f"for {duration(self.seconds)}"] if self.seconds >= 1 else []
        if self.rate is not None and self.left_s is not None:
            passed = [f"{number(self.rate)} a second", f"{duration(self.left_s)} left"]
        return [[f"{self.what}{counted}", *passed]]


@dataclass(frozen=True)
class ColdStartStep(Event):
    """One step of the cold start."""

    kind = "cold_start"

    step: int
    max_steps: int
    """Steps that it has at most: mostly its metric ends it before."""
    left_s: float | None
    """Seconds that it has left at most; null before its second step."""
    metrics: Mapping[str, float]
    """By the names of `sft.jsonl`."""

    def lines(self) -> list[Line]:
        """Return step, time left and metrics."""
        left = [] if self.left_s is None else [f"at most {duration(self.left_s)} left"]
        metrics = [f"{key} {number(value)}" for key, value in self.metrics.items()]
        return [[_count("cold start", self.step, self.max_steps), *left, *metrics]]


@dataclass(frozen=True)
class Step(Event):
    """One GRPO step."""

    kind = "step"

    step: int
    steps: int
    """Steps that the run is to have."""
    left_s: float | None
    """Estimated seconds that the run has left."""
    metrics: Mapping[str, float]
    """By the names of `metrics.jsonl`."""

    def lines(self) -> list[Line]:
        """Return step, time left and main metrics."""
        left = [] if self.left_s is None else [f"{duration(self.left_s)} left"]
        return [[_count("step", self.step, self.steps), *left, *step_parts(self.metrics)]]


@dataclass(frozen=True)
class Evaluated(Event):
    """An evaluation of a run."""

    kind = "evaluation"
    always = True

    step: int
    """Steps after which it was made."""
    metric: str
    """The metric by which the run is judged."""
    value: float
    interval: Interval
    """Its 95 % interval, `[low, high]`."""
    change: float | None
    """The value less that of the first evaluation; null in the first."""
    best: float
    """The best value so far."""
    best_step: int
    """The step whose evaluation has it."""
    samples: int
    """Held-out rows that were scored."""
    seconds: float
    """Wall seconds that it took."""
    metrics: Mapping[str, float]
    """All its metrics, by the names of `evals/step-N.json`."""

    def lines(self) -> list[Line]:
        """Return the summary: the metric, and after it the others over all sources."""
        low, high = self.interval
        figures = [
            f"evaluation at step {self.step}",
            f"{self.metric} {number(self.value)} [{number(low)}, {number(high)}]",
        ]
        if self.change is not None:
            figures.append(f"{self.change:+.3f} since the first")
            figures.append(f"best {number(self.best)} at step {self.best_step}")
        figures += [f"{self.samples} samples", f"{self.seconds:.1f} s"]
        others = [(k, v) for k, v in self.metrics.items() if "/" not in k and k != self.metric]
        return [[*figures, *(f"{key} {number(value)}" for key, value in others)]]


@dataclass(frozen=True)
class Warned(Event):
    """Something that the person who runs this should know, and perhaps act on."""

    kind = "warning"
    always = True

    text: str

    def lines(self) -> list[Line]:
        """Return the lines of the text."""
        return [[line] for line in self.text.splitlines()]


@dataclass(frozen=True)
class Noted(Event):
    """Something worth a line that asks for nothing."""

    kind = "note"
    aside = True

    text: str

    def lines(self) -> list[Line]:
        """Return the text."""
        return [[self.text]]


@dataclass(frozen=True)
class Saved(Event):
    """A checkpoint is written; with `run.save_in_background` it has been begun."""

    kind = "saved"

    step: int
    """Steps of its phase that it holds."""
    phase: Literal["sft", "rl"]
    folder: Path
    seconds: float
    """Wall seconds for which training waited."""


@dataclass(frozen=True)
class Finished(Event):
    """A run has come to its end."""

    kind = "finished"
    always = True

    steps: int
    folder: Path
    """The run folder; `summary.json` in it has all that follows, and more."""
    report: Path | None
    """Its page; null with `run.report: false`."""
    metric: str | None
    """The metric by which it is judged; null without an evaluation, as are the next three."""
    first: float | None
    last: float | None
    interval: Interval
    """The 95 % interval of `last`."""
    gain: Mapping[str, float]
    """Where an evaluation forces thinking: `think`, `direct` and `gain`, with `low` and `high`."""

    def lines(self) -> list[Line]:
        """Return the first and the last held-out value, what a thought is worth, and the report."""
        lines: list[Line] = []
        if self.first is not None and self.last is not None:
            lines.append(
                [
                    f"held-out {self.metric}: {self.first:.3f} before GRPO, {self.last:.3f} "
                    f"{describe_interval(self.interval)} after {self.steps} steps"
                ]
            )
        if worth := self.gain:
            lines.append(
                [
                    f"forced to think {worth['think']:.3f}, forced not to {worth['direct']:.3f}: a "
                    f"thought is worth {worth['gain']:+.3f} [{worth['low']:+.3f}, {worth['high']:+.3f}]"
                ]
            )
        return [*lines, [f"report: {self.report}"]] if self.report else lines


@dataclass(frozen=True)
class Interrupted(Event):
    """Ctrl-C, or SIGTERM, ended the command; exit code 130."""

    kind = "interrupted"
    always = True
    aside = True

    resume: str | None
    """What is added to the command to go on; null where nothing was kept."""
    kept: Path | None
    """Where what was done is kept."""

    def lines(self) -> list[Line]:
        """Return how to go on; nothing where nothing is kept, which the command line says itself."""
        if self.kept is None:
            return []
        return [[f"interrupted; saved in {self.kept}: add {self.resume} to continue"]]


@dataclass(frozen=True)
class Failed(Event):
    """The command, or an attempt of `vlmrl launch`, ended with an error; people are told by the command line.

    In `vlmrl launch` a `warning` follows if the run goes on.
    """

    kind = "failed"

    error: str
    """The line."""
    mistake: bool
    """Whether the user can mend it (exit code 2), else exit code 1."""


# ----------------------------------------------- what commands but `train` come to


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
    faults: Mapping[str, int]
    """Greedy completions on which a verifier failed, by verifier; they count in no mean."""
    with_zeros: Mapping[str, float]
    """The means in which completions without a score, for a fault or a mask, are 0, where there are any."""

    def lines(self) -> list[Line]:
        """Return a line for each metric, as a table; what one source repeats of all is left out."""
        rows: list[Line] = []
        for name, value in self.metrics.items():
            whole, interval = name.partition("/")[2], self.intervals[name]
            if (value, interval) == (self.metrics.get(whole), self.intervals.get(whole)):
                continue
            bound = (
                f"  {self.with_zeros[name]:.4f} with 0 for faults"
                if name in self.with_zeros
                else ""
            )
            rows.append([f"{name:32} {value:.4f}  {describe_interval(interval, 4)}{bound}"])
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
    figures: Mapping[str, Mapping[str, float | None]]
    """`official`, `strict` and others: `value`, its 95 % interval from `low` to `high` (null if the rows are
    too few), `count` of rows."""
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
    controls: Mapping[str, Mapping[str, Mapping[str, float | None]]]
    """By control its `figures`."""
    pass_at_k: Mapping[str, Mapping[str, float | None]]
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
    """Rows with a kept answer."""
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


def kinds() -> dict[str, type[Event]]:
    """Return every kind of event by its name."""
    return {event.kind: event for event in Event.__subclasses__()}


def _count(what: str, step: int, steps: int) -> str:
    return f"{what} {step:>{len(str(steps))}}/{steps}"
