"""Run the commands of published figures again, each in a folder of its own, and compare what they yield."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from vlmrl.commands.reproduction.readings import read_value
from vlmrl.commands.reproduction.records import PublishedFigure, Record
from vlmrl.errors import UserError
from vlmrl.system import atomic_files

__all__ = ["RerunOutcome", "fit", "reproduce", "words_of"]

PATIENCE_S = 10
"""Seconds that an interrupted command has before it is killed."""


@dataclass(frozen=True, slots=True)
class RerunOutcome:
    """What came of one figure."""

    name: str
    expected: float
    low: float
    high: float
    got: float | None
    verdict: Literal["reproduced", "not reproduced", "not runnable here"]
    why: str
    minutes: float
    """CPU minutes of the whole command."""

    def line(self, digits: int) -> str:
        """Return the outcome for a person."""
        if self.verdict == "not runnable here":
            return f"{self.name}: {self.verdict}: {self.why}"
        got = "nothing" if self.got is None else f"{self.got:.{digits}f}"
        span = f"[{self.low:g}, {self.high:g}]" if self.low < self.high else "exactly"
        why = f": {self.why}" if self.why else ""
        return f"{self.name}: expected {self.expected:.{digits}f} {span}, got {got}: {self.verdict}{why}"


def words_of(command: Sequence[str], folder: str) -> list[str]:
    """Return the words that run a record's command, with this Python and its own folder.

    Raises:
        UserError: neither `vlmrl` nor `python performance/<script>.py`, or a word that leaves the repository.
    """
    for word in command:
        if ".." in Path(word).parts or word.startswith("/"):
            raise UserError(f"expected words that stay in the repository, got {word!r}")
    program, first, *_ = [*command, "", ""]
    if program == "python" and Path(first).parts[:1] == ("performance",) and first.endswith(".py"):
        start = [sys.executable]
    elif program == "vlmrl":
        start = [sys.executable, "-m", "vlmrl"]
    else:
        raise UserError(f"expected vlmrl or python performance/<script>.py, got {program} {first}")
    return start + [word.replace("{out}", folder) for word in command[1:]]


def fit(records: Mapping[str, Record], minutes: float) -> dict[str, Record]:
    """Return the records that run here in at most `minutes` CPU minutes together, cheapest first."""
    chosen, spent = {}, 0.0
    for name, record in sorted(records.items(), key=lambda pair: pair[1].minutes):
        spent += record.minutes
        if spent <= minutes and not missing(record):
            chosen[name] = record
    return chosen


def missing(record: Record) -> str:
    """Return why a record cannot be run here; nothing if it can."""
    if record.by_hand:
        return f"measured once, by hand, at {record.commit}: {record.by_hand}"
    for need in record.needs:
        if need == "gpu":
            import torch

            there = torch.cuda.is_available()
        else:
            there = importlib.util.find_spec(need) is not None
        if not there:
            return f"it needs {need}"
    return ""


def reproduce(records: Mapping[str, Record], root: Path, out: Path) -> Iterator[RerunOutcome]:
    """Run each record's command and yield the outcomes of its figures.

    Each line of `out/outcomes.jsonl` is an outcome, written as soon as it is known. An interrupt ends
    the command that runs.

    Raises:
        UserError: a record's folder is there already, or its command leaves the repository.
    """
    for name, record in records.items():
        for outcome in _outcomes(name, record, root, out / name):
            out.mkdir(parents=True, exist_ok=True)
            atomic_files.append_line(out / "outcomes.jsonl", asdict(outcome))
            yield outcome


def _outcomes(name: str, record: Record, root: Path, folder: Path) -> Iterator[RerunOutcome]:
    output, minutes, failure = "", 0.0, ""
    lacking = missing(record)
    if not lacking:
        if folder.exists():
            raise UserError(
                f"{folder}: expected a folder that is not there yet, to write what is new"
            )
        folder.mkdir(parents=True)
        code, minutes = _run(words_of(record.command, str(folder)), root, folder)
        output = (folder / "output.txt").read_text(encoding="utf-8", errors="replace")
        if code:
            said = (folder / "errors.txt").read_text(encoding="utf-8", errors="replace").split("\n")
            last = next((line for line in reversed(said) if line.strip()), "")
            failure = f"the command ended with exit code {code}: {last}"
    for key, figure in record.figures.items():
        got, verdict, why = None, "not runnable here", lacking
        if not lacking:
            got, why = (None, failure) if failure else _read(folder, output, figure)
            low, high = figure.span
            verdict = "reproduced" if got is not None and low <= got <= high else "not reproduced"
        facts: Any = (figure.expected, *figure.span, got, verdict, why, minutes)
        yield RerunOutcome(f"{name}/{key}", *facts)


def _read(folder: Path, output: str, figure: PublishedFigure) -> tuple[float | None, str]:
    try:
        less = read_value(folder, output, figure.minus) if figure.minus else 0.0
        return read_value(folder, output, figure.read) - less, ""
    except UserError as error:
        return None, str(error)


def _run(words: Sequence[str], root: Path, folder: Path) -> tuple[int, float]:
    """Run a command from the repository's root; return its exit code and its CPU minutes.

    It has a process group of its own, so that an interrupt ends all that it started.
    """
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    threads = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    with (folder / "output.txt").open("wb") as output, (folder / "errors.txt").open("wb") as errors:
        process = subprocess.Popen(
            words,
            cwd=root,
            env={**os.environ, **threads},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            _end(process)
            raise
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, (usage.ru_utime + usage.ru_stime) / 60


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a command and all that it started, and kill what does not end."""
    for sent, patience in ((signal.SIGINT, PATIENCE_S), (signal.SIGKILL, None)):
        try:
            os.killpg(process.pid, sent)
            process.wait(patience)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
