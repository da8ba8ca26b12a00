"""Run the commands of published figures again, and compare what comes out with what was published.

- `python performance/reproduce.py` lists the records: what they say, CPU minutes, what they need
- `python performance/reproduce.py quickstart-0` or `... performance/results/quickstart.yaml`
- `python performance/reproduce.py --budget 30`

One file `performance/results/<topic>.yaml` holds the records of a topic; a record is one command and
the figures that it yields, named `<record>/<figure>`. A name means one figure in the whole repository.
Exit code 1 if any figure is outside of what its record accepts. Ctrl-C keeps what is known by then.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from vlmrl.config import tree
from vlmrl.errors import UserError
from vlmrl.plugins import nearest
from vlmrl.system import files

ROOT = Path(__file__).parents[1]

OUTPUT = "output"
"""In place of a file in `PublishedFigure.read`: what the command printed."""
Need = Literal["gpu", "vllm", "ray", "trl", "librosa", "hydrogen-drumkits"]
Span = tuple[float, float]
Verdict = Literal["reproduced", "not reproduced", "not runnable here"]


class PublishedFigure(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A published number, and which values count as the same.

    At most one of `accept` and `relative`; without them it is the interval, and without that equality.
    """

    expected: float
    """The number as published, rounded to `digits`."""
    interval: Span | None = None
    """Its published 95 % interval."""
    accept: Span | None = None
    """The least and the largest value of a repetition that count as the same."""
    relative: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """The same as a share of the expected value: 0.5 accepts from half of it to 1.5 times it."""
    read: tuple[str, ...] = ()
    """Where the value is: a file in the command's folder and the keys in it; `metrics.jsonl`, a name and
    steps `1-25`, whose mean counts; `output` and the text before the number; or `output`, the first cells of
    a table's row, and the title of its column."""
    minus: tuple[str, ...] = ()
    """Where the value is that is taken from it, if the figure is a difference."""
    digits: int = 3
    """Decimal places as published."""

    @property
    def span(self) -> Span:
        """Return the least and the largest value that count as the same."""
        if self.relative is not None:
            reach = abs(self.expected) * self.relative
            return self.expected - reach, self.expected + reach
        return self.accept or self.interval or (self.expected, self.expected)


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A command and the figures that it yields; or figures that no command yields, and why."""

    says: str
    """What the figures are, in a line."""
    figures: dict[str, PublishedFigure]
    command: tuple[str, ...] = ()
    """`vlmrl ...` or `python performance/....py ...`; `{out}` in an argument is the folder of its own."""
    minutes: Annotated[float, msgspec.Meta(ge=0)] = 0
    """CPU minutes that the command takes."""
    needs: tuple[Need, ...] = ()
    """What not every machine has."""
    by_hand: str = ""
    """Why no command yields the figures."""
    commit: str = ""
    """The commit at which they were measured."""
    date: datetime.date
    """When the figures were measured."""
    repeated: datetime.date | None = None
    """When all of them last came out again."""
    hardware: str
    name: str = ""
    topic: str = ""


# --- records


def read_records(root: Path) -> dict[str, Record]:
    """Return all records by name.

    Raises:
        UserError: a file that is no set of records, or a name that is there twice.
    """
    found: dict[str, Record] = {}
    for file in sorted((root / "performance/results").glob("*.yaml")):
        for name, record in _read_file(file).items():
            if name in found:
                raise UserError(f"{file.name}: record {name!r} is also in {found[name].topic}.yaml")
            found[name] = record
    return found


def _read_file(file: Path) -> dict[str, Record]:
    values = tree.read_mapping(file)
    if unknown := values.keys() - {"date", "hardware", "records"}:
        raise UserError(f"{file.name}: expected date, hardware and records, got {min(unknown)!r}")
    common: dict[str, Any] = {key: values[key] for key in ("date", "hardware") if key in values}
    given = values.get("records")
    if not isinstance(given, Mapping):
        raise UserError(f"{file.name}: expected records by name, got {given!r}")
    return {name: _convert(file, name, common, record) for name, record in given.items()}


def _convert(file: Path, name: str, common: Mapping[str, Any], given: Any) -> Record:
    where = f"{file.name}, record {name!r}"
    if not isinstance(given, Mapping):
        raise UserError(f"{where}: expected keys and values, got {given!r}")
    whole = {**common, **given, "name": name, "topic": file.stem}
    try:
        record = msgspec.convert(whole, Record)
    except msgspec.ValidationError as error:
        raise UserError(f"{where}: {error}") from error
    for problem in _problems(record):
        raise UserError(f"{where}: {problem}")
    return record


def _problems(record: Record) -> list[str]:
    """Return what is wrong with a record in itself."""
    found = []
    if bool(record.command) == bool(record.by_hand):
        found.append("expected either a command or by_hand")
    if record.by_hand and not record.commit:
        found.append("expected the commit of what was measured by hand")
    if record.command and not record.minutes:
        found.append("expected the CPU minutes of its command")
    for name, figure in record.figures.items():
        low, high = figure.span
        if not low <= figure.expected <= high:
            found.append(f"{name}: expected {figure.expected} outside of {low} to {high}")
        if figure.accept and figure.relative:
            found.append(f"{name}: accept and relative exclude each other")
        if round(figure.expected, figure.digits) != figure.expected:
            found.append(f"{name}: {figure.expected} has more than {figure.digits} decimal places")
        if bool(figure.read) != bool(record.command) or len(figure.read) == 1:
            found.append(
                f"{name}: expected `read` to say where the command's value is, if there is one"
            )
    return found


def choose(records: Mapping[str, Record], names: Sequence[str]) -> dict[str, Record]:
    """Return the records that files of records, topics, records or figures name; of a figure, it alone.

    Raises:
        UserError: a name that is none of these.
    """
    chosen: dict[str, Record] = {}
    topics = {record.topic for record in records.values()}
    for name in names:
        topic = Path(name).stem if name.endswith((".yaml", ".md")) else name
        record, _, figure = name.partition("/")
        if topic in topics:
            chosen |= {key: each for key, each in records.items() if each.topic == topic}
        elif record in records and (not figure or figure in records[record].figures):
            whole = records[record]
            kept = dict(chosen[record].figures) if record in chosen else {}
            kept |= {key: each for key, each in whole.figures.items() if figure in ("", key)}
            chosen[record] = msgspec.structs.replace(whole, figures=kept)
        else:
            figures = [f"{key}/{each}" for key, one in records.items() for each in one.figures]
            hint = nearest(name, sorted([*topics, *records, *figures]))
            raise UserError(f"no file, record or figure is named {name!r}{hint}")
    return chosen


# --- readings


NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?")


def read_value(folder: Path, output: str, where: Sequence[str]) -> float:
    """Return the number at a place, as `PublishedFigure.read` describes it.

    Raises:
        UserError: the file, key, text, row or column is not there, is there twice, or is no number.
    """
    file, *keys = where
    if file == OUTPUT:
        return _read_cell(output, *keys) if len(keys) == 2 else _read_after(output, keys[0])
    path = (folder / file).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise UserError(f"{file}: expected a file in the command's own folder")
    if not path.is_file():
        raise UserError(f"the command wrote no {file}")
    if path.suffix == ".jsonl":
        return _read_mean(path, *keys)
    value: Any = json.loads(path.read_text(encoding="utf-8"))
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            raise UserError(f"{file}: expected keys {' > '.join(keys)}, got no {key!r}")
        value = value[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{file}: expected a number at {' > '.join(keys)}, got {value!r}")
    return float(value)


def _read_mean(path: Path, name: str, steps: str) -> float:
    """Return the mean of a metric over the steps of a run, both ends included."""
    first, last = map(int, steps.split("-"))
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    values = [line.get(name) for line in lines if first <= line["step"] <= last]
    if len(values) != last - first + 1 or None in values:
        raise UserError(f"{path.name}: expected {name} at each of steps {steps}")
    return statistics.fmean(values)


def _read_after(output: str, text: str) -> float:
    """Return the first number after a text that was printed once."""
    _, found, rest = output.partition(text)
    if not found or text in rest:
        raise UserError(f"expected {text!r} once in the output, got it {output.count(text)} times")
    return _number(rest.splitlines()[0] if rest else "", text)


def _read_cell(output: str, row: str, column: str) -> float:
    """Return the number in a Markdown table whose row begins with the cells `row`."""
    start = [cell.strip() for cell in row.split("|")]
    found = [
        cells[titles.index(column)]
        for titles, cells in _rows(output)
        if column in titles and cells[: len(start)] == start
    ]
    if len(found) != 1:
        raise UserError(f"expected one row {row!r} with a column {column!r}, got {len(found)}")
    return _number(found[0], f"{row}, {column}")


def _rows(output: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the titles and the cells of each row of the tables in a text."""
    titles: list[str] = []
    lines = output.splitlines()
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if not line.startswith("|"):
            titles = []
        elif re.fullmatch(r"\|[-:| ]+\|", below):
            titles = _cells(line)
        elif titles and not re.fullmatch(r"\|[-:| ]+\|", line):
            yield titles, _cells(line)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _number(text: str, where: str) -> float:
    match = NUMBER.search(text)
    if match is None:
        raise UserError(f"expected a number at {where!r}, got {text.strip()!r}")
    return float(match[0].replace(",", ""))


# --- running


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
    verdict: Verdict
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
        elif need == "hydrogen-drumkits":
            from vlmrl.datasets.drum_hits import INSTALLED

            there = Path(INSTALLED).is_dir()
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
        if record.command:
            print(f"{name}: about {record.minutes:g} CPU minutes", file=sys.stderr, flush=True)
        for outcome in _outcomes(name, record, root, out / name):
            out.mkdir(parents=True, exist_ok=True)
            files.append_line(out / "outcomes.jsonl", asdict(outcome))
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


# --- command


def list_records(records: Mapping[str, Record]) -> Iterator[str]:
    """Yield a line for each record: name, CPU minutes, figures, what it needs, what it says."""
    width = max(map(len, records), default=0)
    yield f"{'record':{width}}  CPU min  figures  says"
    for name, record in records.items():
        needs = f" (needs {', '.join(record.needs)})" if record.needs else ""
        minutes = "by hand" if record.by_hand else f"{record.minutes:7.1f}"
        yield f"{name:{width}}  {minutes}  {len(record.figures):7}  {record.says}{needs}"
    repeated = [record for record in records.values() if record.command]
    yield (
        f"{sum(len(r.figures) for r in repeated)} figures of {len(repeated)} commands, "
        f"{sum(r.minutes for r in repeated):.0f} CPU minutes in all; "
        f"{sum(len(r.figures) for r in records.values() if r.by_hand)} figures measured by hand"
    )


def describe(records: Mapping[str, Record]) -> Iterator[dict[str, Any]]:
    """Yield each figure with all that its record says, as JSON has it."""
    for name, record in records.items():
        whole = msgspec.to_builtins(record)
        del whole["figures"]
        for key, figure in record.figures.items():
            one = msgspec.to_builtins(figure)
            yield {**whole, **one, "name": f"{name}/{key}", "span": list(figure.span)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="files of records, records or single figures")
    parser.add_argument("--budget", type=float, help="CPU minutes to spend, cheapest records first")
    parser.add_argument("--out", type=Path, help="`runs/reproduced/<time>` by default")
    parser.add_argument("--json", action="store_true", help="print one object a line")
    options = parser.parse_args()
    known = read_records(ROOT)
    if not options.names and options.budget is None:
        listed = map(json.dumps, describe(known)) if options.json else list_records(known)
        print(*listed, sep="\n")
        return
    chosen = choose(known, options.names) if options.names else known
    if options.budget is not None:
        fitting = fit(chosen, options.budget)
        print(f"{len(fitting)} of {len(chosen)} records fit", file=sys.stderr)
        chosen = fitting
    folder = options.out or Path("runs/reproduced") / time.strftime("%Y%m%d-%H%M%S")
    verdicts = []
    try:
        for outcome in reproduce(chosen, ROOT, folder.absolute()):
            verdicts.append(outcome.verdict)
            record, _, figure = outcome.name.partition("/")
            line = outcome.line(chosen[record].figures[figure].digits)
            print(json.dumps(asdict(outcome)) if options.json else line, flush=True)
    finally:
        counts = (f"{verdicts.count(v)} {v}" for v in typing.get_args(Verdict))
        print(*counts, sep=", ", file=sys.stderr)
    sys.exit(1 if "not reproduced" in verdicts else 0)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
