"""The records of published figures: what each says, the command that repeats it, and where its value is.

One file `performance/results/<topic>.yaml` holds the records of a topic; a record is one command and
the figures that it yields, named `<record>/<figure>`. A name means one figure in the whole repository.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from vlmrl.config import tree
from vlmrl.errors import UserError
from vlmrl.plugins import nearest

__all__ = ["OUTPUT", "PublishedFigure", "Record", "choose", "read_records", "repository"]

OUTPUT = "output"
"""In place of a file in `PublishedFigure.read`: what the command printed."""
Need = Literal["gpu", "vllm", "ray", "trl", "librosa"]
Span = tuple[float, float]


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


def repository() -> Path:
    """Return the checkout that this package is in.

    Raises:
        UserError: it is installed elsewhere, without the scripts and records.
    """
    root = Path(__file__).parents[3]
    if not (root / "performance/results").is_dir():
        raise UserError(
            "the scripts and records of published figures are in the repository, not in the installed "
            "package: in a checkout, `make quickstart` once, then `.venv/bin/vlmrl reproduce`"
        )
    return root


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
