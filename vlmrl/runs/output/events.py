"""What commands say while they work, and a run at its end: one class for each kind of event.

The fields are what `--json` writes. The lines are what people read; each is a sequence of parts, the most
important first: a terminal breaks a line between parts, and a panel without room drops the last ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from vlmrl.runs.console import (
    describe_interval,
    duration,
    number,
    sft_parts,
    step_parts,
)

__all__ = ["Doing", "Event", "Finished", "Interrupted", "Line", "Noted", "Warned"]

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
    """Rows to do; null where nothing can be counted."""
    seconds: float
    """Seconds since it began."""
    ended: bool
    rate: float | None
    """Rows a second since it began; null before the first."""
    left_s: float | None
    """Seconds left at this rate; null where it or `total` is not known."""

    def lines(self) -> list[Line]:
        """Return how far it is, with rate and time left where they are known."""
        return [self.parts()]

    def parts(self) -> Line:
        """Return its one line."""
        passed = [f"for {duration(self.seconds)}"] if self.seconds >= 1 else []
        if self.total is None:
            return [self.what, *passed]
        found = [f"{self.what}: {self.done} of {self.total} rows"]
        if self.rate is None or self.left_s is None:
            return [*found, *passed]
        return [*found, f"{number(self.rate)} a second", f"{duration(self.left_s)} left"]


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
        return [[_count("cold start", self.step, self.max_steps), *left, *sft_parts(self.metrics)]]


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
        found = [
            f"evaluation at step {self.step}",
            f"{self.metric} {number(self.value)} [{number(low)}, {number(high)}]",
        ]
        if self.change is not None:
            found.append(f"{self.change:+.3f} since the first")
            found.append(f"best {number(self.best)} at step {self.best_step}")
        found += [f"{self.samples} samples", f"{self.seconds:.1f} s"]
        others = [(k, v) for k, v in self.metrics.items() if "/" not in k and k != self.metric]
        return [[*found, *(f"{key} {number(value)}" for key, value in others)]]


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
        found: list[Line] = []
        if self.first is not None and self.last is not None:
            found.append(
                [
                    f"held-out {self.metric}: {self.first:.3f} before GRPO, {self.last:.3f} "
                    f"{describe_interval(self.interval)} after {self.steps} steps"
                ]
            )
        if worth := self.gain:
            found.append(
                [
                    f"forced to think {worth['think']:.3f}, forced not to {worth['direct']:.3f}: a "
                    f"thought is worth {worth['gain']:+.3f} [{worth['low']:+.3f}, {worth['high']:+.3f}]"
                ]
            )
        return [*found, [f"report: {self.report}"]] if self.report else found


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


def _count(what: str, step: int, steps: int) -> str:
    return f"{what} {step:>{len(str(steps))}}/{steps}"
