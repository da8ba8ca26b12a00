"""Which rows a run's folder has, and which of them a reader wants to see.

Each file is read once, and again if changed. Of a row only what it is found and chosen by is kept. A run
of 10,000 steps is not read for one page: files next to the step that is looked at come first, and a request
stops reading when it has used its CPU time.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shlex
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.parse import urlencode

import msgspec

from vlmrl.data.row_forms import LISTS
from vlmrl.errors import UserError
from vlmrl.runs import run_folder
from vlmrl.runs.rollout_rows import Row
from vlmrl.schema import Frame, MediaKind
from vlmrl.system.files import Stamp, stamp_of, write_bytes, write_lines
from vlmrl.truths import json_form

PARTS = ("rollouts", "evals")
"""Folders of a run that have rows: those of training steps, and those of evaluations."""
REWARD = "reward"


@dataclass(frozen=True, slots=True)
class RowFacts:
    """Where a stored row is, and the numbers by which it is chosen: one for each of its G completions."""

    part: str
    step: int
    line: int
    """Of its file, from 0."""
    offset: int
    """Bytes before it."""
    length: int
    source: str
    id: str
    drawn: str
    """How an evaluation drew it; empty for training."""
    scores: Mapping[str, Sequence[float | None]]
    """The rewards, and by verifier the scores; None where a completion has none."""
    failed: Sequence[bool]
    """Whether a verifier failed on the completion, or it is masked."""

    @property
    def mean_reward(self) -> float | None:
        """Return the mean of the rewards that count; None without any."""
        known = [value for value in self.scores[REWARD] if value is not None]
        return fmean(known) if known else None


@dataclass(frozen=True, slots=True)
class RowFilter:
    """The rows that have at least one completion that fits; the default is every row of training."""

    part: str = "rollouts"
    only: str = ""
    """A source; empty: all."""
    first: int | None = None
    """The first step."""
    last: int | None = None
    by: str = ""
    """A verifier, whose scores then count in place of the rewards; empty: the rewards."""
    least: float | None = None
    """Least reward, or score, of a completion that fits."""
    most: float | None = None
    spread: float | None = None
    """Least standard deviation of them in the group, which says how far its completions disagree."""
    failed: bool = False
    """Whether only completions fit on which a verifier failed, or which are masked."""
    ids: tuple[str, ...] = ()
    """Rows by id; empty: all."""

    @classmethod
    def read(cls, query: Mapping[str, str]) -> RowFilter:
        """Return the filter that an address states; nonsense in it says nothing."""
        part = query.get("part", "")
        return cls(
            part=part if part in PARTS else PARTS[0],
            only=query.get("only", ""),
            first=read_count(query.get("first", "")),
            last=read_count(query.get("last", "")),
            by=query.get("by", ""),
            least=_number(query.get("least", "")),
            most=_number(query.get("most", "")),
            spread=_number(query.get("spread", "")),
            failed=query.get("failed") == "1",
        )

    def query(self) -> dict[str, str]:
        """Return what an address states of it: only what differs from the default."""
        texts = {}
        for option in fields(self):
            value = getattr(self, option.name)
            if value != option.default and option.name != "ids":
                texts[option.name] = "1" if value is True else str(value)
        return texts

    def matches(self, row: RowFacts) -> bool:
        """Return whether a row is among those wanted."""
        if row.part != self.part or (self.only and row.source != self.only):
            return False
        if self.first is not None and row.step < self.first:
            return False
        if self.last is not None and row.step > self.last:
            return False
        if self.ids and row.id not in self.ids:
            return False
        if self.spread is not None:
            known = [value for value in self._scores(row) if value is not None]
            if len(known) < 2 or _deviation(known) < self.spread:
                return False
        return not self._looks_at_completions or bool(self.fitting(row))

    def fitting(self, row: RowFacts) -> list[int]:
        """Return the numbers of the row's completions that fit, from 0."""
        if not self._looks_at_completions:
            return list(range(len(row.failed)))
        return [g for g, value in enumerate(self._scores(row)) if self._fits(value, row.failed[g])]

    @property
    def _looks_at_completions(self) -> bool:
        return bool(self.by or self.failed or self.least is not None or self.most is not None)

    def _scores(self, row: RowFacts) -> Sequence[float | None]:
        return row.scores.get(self.by or REWARD) or (None,) * len(row.failed)

    def _fits(self, value: float | None, failed: bool) -> bool:
        if self.failed and not failed:
            return False
        if self.least is None and self.most is None:
            return value is not None or not self.by
        low = -math.inf if self.least is None else self.least
        high = math.inf if self.most is None else self.most
        return value is not None and low <= value <= high


def read_range(text: str, what: str) -> tuple[float | None, float | None]:
    """Return both ends of a range such as `0.2:0.8`, `10:` or `:5`; one number alone is both.

    Raises:
        UserError: it is no range; the message names `what`.
    """
    low, colon, high = text.partition(":")
    ends = [low, high] if colon else [low, low]
    numbers = [_number(end) for end in ends]
    if not text or any(end and value is None for end, value in zip(ends, numbers, strict=True)):
        raise UserError(f"{what}: expected a range such as 2:8, 2: or :8, got {text!r:.60}")
    return numbers[0], numbers[1]


def read_count(text: str, max_digits: int = 15) -> int | None:
    """Return a whole number from 0 as an address states it; None for anything else, or more digits."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= max_digits else None


def encode(query: Mapping[str, Any]) -> str:
    """Return a query for an address; what UTF-8 cannot say becomes question marks."""
    return urlencode(query, errors="replace")


def _deviation(values: Sequence[float]) -> float:
    """Return the standard deviation; that of `statistics` is exact, and too slow for a long run."""
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


BUDGET_S = 0.3
"""CPU seconds of one request for files that were not read before."""

Place = tuple[str, int]
"""Part and step of a file."""


class _Verdict(msgspec.Struct):
    score: float | None = None
    fault: str | None = None


class _Completion(msgspec.Struct):
    reward: float | None = None
    valid: bool = True
    verdicts: dict[str, _Verdict] = {}


class _Line(msgspec.Struct):
    id: str
    source: str
    completions: list[_Completion]
    drawn: str = ""


_decode = msgspec.json.Decoder(_Line).decode


@dataclass(slots=True)
class _File:
    path: Path
    stamp: Stamp
    rows: list[RowFacts] | None = None
    """None: it was not read."""
    damaged: int = 0


@dataclass
class RowIndex:
    """The stored rows of one run; `refresh` before each look."""

    folder: Path
    _files: dict[Place, _File] = field(default_factory=dict)
    _version: int = 0
    _chosen: tuple[Any, list[RowFacts]] = field(default_factory=lambda: (None, []))

    @property
    def read(self) -> int:
        """Return how many files have been read."""
        return sum(file.rows is not None for file in self._files.values())

    @property
    def total(self) -> int:
        """Return how many files there are."""
        return len(self._files)

    @property
    def damaged(self) -> int:
        """Return how many of the lines that were read are no rows."""
        return sum(file.damaged for file in self._files.values())

    @property
    def is_whole(self) -> bool:
        """Return whether all files have been read."""
        return self.read == self.total

    def refresh(self, near: int | None = None, budget_s: float = BUDGET_S) -> None:
        """See which files there are, and read those nearest to a step (None: the newest) in time."""
        self._list_files()
        unread = [key for key, file in self._files.items() if file.rows is None]
        middle = max((step for _, step in self._files), default=0) if near is None else near
        end = time.thread_time() + budget_s
        for key in sorted(unread, key=lambda key: abs(key[1] - middle)):
            self._read(key)
            if time.thread_time() > end:
                break

    def find(
        self, part: str, step: int, source: str, id_: str, line: int | None
    ) -> RowFacts | None:
        """Return a row of a step: the one in that line if it is it, else the first; None: there is none."""
        if (part, step) not in self._files:
            return None
        self._read((part, step))
        rows = self._files[part, step].rows or []
        matches = [row for row in rows if (row.source, row.id) == (source, id_)]
        return next((row for row in matches if row.line == line), matches[0] if matches else None)

    def answers(self, source: str, id_: str) -> list[RowFacts]:
        """Return all rows that ask this, by step, as far as files have been read."""
        matches = [
            row
            for file in self._files.values()
            for row in file.rows or ()
            if row.id == id_ and row.source == source
        ]
        return sorted(matches, key=_order)

    def chosen(self, wanted: RowFilter) -> list[RowFacts]:
        """Return the rows that match, by step, as far as files have been read."""
        key = (wanted, self._version)
        if self._chosen[0] != key:
            places = sorted(self._files, key=lambda at: at[1])
            rows = (row for at in places for row in self._files[at].rows or ())
            self._chosen = (key, [row for row in rows if wanted.matches(row)])
        return self._chosen[1]

    def neighbours(
        self, row: RowFacts, wanted: RowFilter
    ) -> tuple[RowFacts | None, RowFacts | None]:
        """Return the matching rows before and after one, which need not match itself."""
        rows = self.chosen(wanted)
        at = bisect_left(rows, _order(row), key=_order)
        after = at + (at < len(rows) and rows[at] is row)
        return (rows[at - 1] if at else None), (rows[after] if after < len(rows) else None)

    def names(self) -> tuple[list[str], list[str]]:
        """Return the sources and the verifiers of the rows that were read."""
        rows = [row for file in self._files.values() for row in file.rows or ()]
        verifiers = {name for row in rows for name in row.scores} - {REWARD}
        return sorted({row.source for row in rows}), sorted(verifiers)

    def load(self, row: RowFacts) -> Row:
        """Return a row with all that is stored of it.

        Raises:
            UserError: its file is gone, or was rewritten meanwhile.
        """
        path = self._files[row.part, row.step].path
        try:
            with path.open("rb") as file:
                file.seek(row.offset)
                content = json.loads(file.read(row.length))
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: cannot be read: {error}") from error
        if not isinstance(content, dict):
            raise UserError(f"{path}: line {row.line + 1}: expected an object")
        return content

    def load_tokens(self, row: RowFacts) -> Row | None:
        """Return the tokens of a training row; None where none are stored of it."""
        path = run_folder.tokens_path(self.folder, row.step)
        if row.part != PARTS[0] or not path.is_file():
            return None
        lines = path.read_bytes().splitlines()
        try:
            content = json.loads(lines[row.line])
        except (IndexError, ValueError):
            return None
        if not isinstance(content, dict):
            return None
        named = (as_utf8(str(content.get(key))) for key in ("source", "id"))
        return content if tuple(named) == (row.source, row.id) else None

    def _list_files(self) -> None:
        seen: dict[Place, _File] = {}
        for part in PARTS:
            for name, step, stamp in _step_files(self.folder / part):
                known = self._files.get((part, step))
                same = known is not None and known.stamp == stamp
                seen[part, step] = known if known and same else _File(Path(name), stamp)
        if seen.keys() != self._files.keys() or any(
            self._files[p] is not f for p, f in seen.items()
        ):
            self._version += 1
        self._files = seen

    def _read(self, key: Place) -> None:
        file = self._files[key]
        if file.rows is not None:
            return
        file.rows, offset = [], 0
        self._version += 1
        try:
            data = file.path.read_bytes()
        except OSError:
            return
        for number, text in enumerate(data.split(b"\n")):
            line = _parse(text) if text else None
            if line is not None:
                file.rows.append(_facts(key, number, offset, len(text), line))
            file.damaged += bool(text) and line is None
            offset += len(text) + 1


def _order(row: RowFacts) -> tuple[int, str, int]:
    return row.step, row.part, row.line


def _step_files(folder: Path) -> list[tuple[str, int, Stamp]]:
    """Return path, step and stamp of the files `step-N.jsonl` of a folder.

    As `run_folder.steps_in`, in half its time: each request looks at every file of a long run.
    """
    files = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                number = entry.name.removeprefix("step-").removesuffix(".jsonl")
                if entry.name == f"step-{number}.jsonl" and number.isdecimal():
                    files.append((entry.path, int(number), stamp_of(entry.stat())))
    except FileNotFoundError:
        return []
    return files


def _parse(text: bytes) -> _Line | None:
    try:
        return _decode(text)
    except msgspec.DecodeError:
        pass
    try:  # a lone surrogate, say, which the fast reader refuses
        return msgspec.convert(json.loads(text), _Line)
    except (ValueError, RecursionError):
        return None


def _facts(key: Place, number: int, offset: int, length: int, line: _Line) -> RowFacts:
    names = dict.fromkeys(name for completion in line.completions for name in completion.verdicts)
    scores: dict[str, tuple[float | None, ...]] = {
        REWARD: tuple(
            completion.reward if completion.valid else None for completion in line.completions
        )
    }
    for name in names:
        verdicts = (completion.verdicts.get(name) for completion in line.completions)
        scores[sys.intern(name)] = tuple(v.score if v else None for v in verdicts)
    failed = tuple(
        not completion.valid or any(v.fault is not None for v in completion.verdicts.values())
        for completion in line.completions
    )
    source, drawn = sys.intern(as_utf8(line.source)), sys.intern(line.drawn)
    return RowFacts(*key, number, offset, length, source, as_utf8(line.id), drawn, scores, failed)


def as_utf8(text: str) -> str:
    """Return a name as an address can carry it: what UTF-8 cannot say is a question mark."""
    return text.encode("utf-8", "replace").decode()


# --------------------------------------------------------------------------------------------------
# Rows of a run to take along: as a data set to train or evaluate on, or as rows to attack a verifier with.
#
# A data set is a JSONL file (layout `selected_rows`) with copies of its media in a folder beside it, so
# that it
# can be moved. Each row of the run's data is written once, however many steps it was asked in. Attack
# rows are
# the completions themselves, each with its truth in the space that it writes coordinates in.


Originals = Callable[[str, MediaKind, str], Path | None]
"""Finds the file of a medium by source, kind and name; None: it cannot be had."""
SIZES = ("width", "height", "duration", "resized_width", "resized_height")
UNWRITTEN = ("track",)
"""Kinds of truth that no typed row states."""


@dataclass(frozen=True)
class Selection:
    """The rows of an index that match a filter; refresh the index before."""

    index: RowIndex
    wanted: RowFilter

    @cached_property
    def rows(self) -> list[RowFacts]:
        """Return where the rows are."""
        return list(self.index.chosen(self.wanted))

    @cached_property
    def newest(self) -> list[RowFacts]:
        """Return each row of the data once, as it was stored last."""
        return list({(row.source, row.id): row for row in self.rows}.values())

    def load(self, facts: RowFacts) -> Row:
        """Return a row with all that is stored of it."""
        return self.index.load(facts)


@dataclass
class Written:
    """What was written: rows, and copies that the run had made of media instead of their own files."""

    rows: int = 0
    copies: int = 0
    files: set[str] = field(default_factory=set)


def as_command(folder: Path, wanted: RowFilter) -> str:
    """Return the command that selects the same rows."""
    words = ["vlmrl", "data", "select", str(folder)]
    options = {"--part": wanted.part, "--source": wanted.only, "--verifier": wanted.by}
    arguments = {name: value for name, value in options.items() if value not in ("", PARTS[0])}
    for name, ends in (
        ("--steps", (wanted.first, wanted.last)),
        ("--score", (wanted.least, wanted.most)),
    ):
        if any(end is not None for end in ends):
            arguments[name] = ":".join("" if end is None else f"{end:g}" for end in ends)
    if wanted.spread is not None:
        arguments["--spread"] = f"{wanted.spread:g}"
    words += [word for pair in arguments.items() for word in pair]
    words += ["--failed"] if wanted.failed else []
    return shlex.join([*words, "--out", "rows.jsonl"])


# -------------------------------------------------------------------------------------- attack rows


def attack_lines(selection: Selection) -> Iterator[dict[str, Any]]:
    """Yield the completions that fit as rows of `vlmrl verify --data`, each text once for a row.

    Raises:
        UserError: the truth of a row cannot be stated in the space of its completions.
    """
    seen = set()
    for facts in selection.rows:
        row = selection.load(facts)
        about = _about(row, facts)
        for g in selection.wanted.fitting(facts):
            completion = row["completions"][g]
            key = (facts.source, facts.id, completion["text"])
            if key in seen:
                continue
            seen.add(key)
            reward = completion["reward"] if completion["valid"] else None
            yield {
                "id": f"{facts.source} {facts.id}, step {facts.step}, answer {g + 1}",
                "completion": completion["text"],
                **about,
                "group": f"{facts.source} {facts.id}, step {facts.step}",
                **({} if reward is None else {"reward": reward}),
            }


def _about(row: Row, facts: RowFacts) -> dict[str, Any]:
    """Return what all completions of a row have in common: prompt, truth, media, space and template."""
    stated = {key: value for key, value in row["frame"].items() if key in SIZES and value}
    space = row["frame"].get("space", "pixel")
    truth = _in_space(row, facts, Frame(**stated, space=space))
    media = [*[{} for _ in range(truth.get("image", 0))], stated]
    template = row.get("template")
    return {
        "prompt": row["question"],
        "truth": truth,
        "media": media if len(media) > 1 else stated,
        "space": space,
        **({"template": template} if isinstance(template, str) else {}),
    }


def _in_space(row: Row, facts: RowFacts, frame: Frame) -> dict[str, Any]:
    """Return the truth of a row, which is stored in the unit square, in the frame's space."""
    try:
        truth = json_form.read(_stated(row), Frame(space="norm1"))
        known = {
            k: json_form.convert(v, frame) for k, v in truth.stated().items() if v is not False
        }
    except (UserError, ValueError) as error:
        raise UserError(f"row {facts.id!r} of {facts.source}: its truth: {error}") from error
    image = {"image": truth.image} if truth.image else {}
    return {**json_form.to_json(known), **image}


def _stated(row: Row) -> dict[str, Any]:
    """Return what a stored truth states; `none` is only where there is nothing to find."""
    return {kind: value for kind, value in row["truth"].items() if value is not False}


# ----------------------------------------------------------------------------------------- data set


def write_data_set(selection: Selection, out: Path, originals: Originals | None) -> Written:
    """Write the rows to `out`, and their media to a folder beside it; return what was written.

    A medium is copied from its own file where `originals` finds it, else from what the run stored: images
    of at most 640 pixels, audio as it was heard.

    Raises:
        UserError: a row cannot be written, because of its truth or its media; the message names it.
    """
    written = Written()
    sources = {row.source for row in selection.newest}
    lines = []
    for facts in selection.newest:
        row = selection.load(facts)
        truth = _stated(row)
        if unwritten := [kind for kind in UNWRITTEN if kind in truth]:
            raise UserError(
                f"row {facts.id!r} of {facts.source}: no row states a truth of kind {unwritten[0]}"
            )
        copier = _Copier(selection.index.folder, out, originals, facts, written)
        media = [(medium["kind"], copier.copy(medium)) for medium in row["media"]]
        lines.append(
            {
                "id": facts.id if len(sources) == 1 else f"{facts.source}/{facts.id}",
                **_conversation(row, media),
                "truth": truth,
                "selected_from": {
                    "run": str(selection.index.folder),
                    "source": facts.source,
                    "part": facts.part,
                    "step": facts.step,
                    "rewards": list(facts.scores["reward"]),
                },
            }
        )
    write_lines(out, lines)
    written.rows = len(lines)
    return written


def _conversation(row: Row, media: list[tuple[str, str]]) -> dict[str, Any]:
    """Return question, system turn and history, each with its media."""
    system, history, at = "", [], 0
    for turn in row.get("turns", ()):
        if turn["role"] == "system":
            system = turn["text"]
            continue
        own = media[at : at + turn["media"]]
        at += turn["media"]
        history.append({"role": turn["role"], "content": turn["text"], **_by_kind(own)})
    conversation: dict[str, Any] = {"question": row["question"], **_by_kind(media[at:])}
    return (
        conversation
        | ({"system": system} if system else {})
        | ({"history": history} if history else {})
    )


def _by_kind(media: list[tuple[str, str]]) -> dict[str, list[str]]:
    by_kind: dict[str, list[str]] = {}
    for kind, path in media:
        by_kind.setdefault(LISTS[kind], []).append(path)
    return by_kind


@dataclass(frozen=True)
class _Copier:
    """Copies the media of one row."""

    folder: Path
    out: Path
    originals: Originals | None
    facts: RowFacts
    written: Written

    def copy(self, medium: Mapping[str, Any]) -> str:
        """Copy a medium's file beside the rows; return its path as the rows state it.

        Raises:
            UserError: there is no file of it, or a row cannot say which part of it is meant.
        """
        where = f"row {self.facts.id!r} of {self.facts.source}: {medium['kind']} {medium['name']!r:.200}"
        cut = medium["start"] is not None or medium["end"] is not None
        stored = medium.get("thumbnail") if medium["kind"] != "video" else None
        path = None
        if self.originals is not None and not cut:
            path = self.originals(self.facts.source, medium["kind"], medium["name"])
        if path is None and stored:
            path = run_folder.media_folder(self.folder) / Path(stored).name
            self.written.copies += 1
        if path is None or not path.is_file():
            why = (
                "only a part of it was shown"
                if cut
                else "its file is not there, and the run has no copy"
            )
            raise UserError(f"{where}: {why}")
        return self._place(path)

    def _place(self, path: Path) -> str:
        name = path.name
        if path.parent != run_folder.media_folder(self.folder):
            digest = hashlib.sha256(str(path.absolute()).encode("utf-8", "replace")).hexdigest()
            name = f"{digest[:24]}{path.suffix}"
        inside = f"{self.out.stem}_media/{name}"
        if inside not in self.written.files:
            write_bytes(self.out.parent / inside, path.read_bytes())
            self.written.files.add(inside)
        return inside
