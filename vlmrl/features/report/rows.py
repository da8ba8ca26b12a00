"""Which rows a run's folder has, and which of them a reader wants to see.

Each file is read once, and again if changed. Of a row only what it is found and chosen by is kept.
"""

from __future__ import annotations

import hashlib
import json
import math
import shlex
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple
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
    source: str
    id: str
    drawn: str
    """How an evaluation drew it; empty for training."""
    scores: Mapping[str, Sequence[float | None]]
    """The rewards, and by verifier the scores; None where a completion has none."""
    failed: Sequence[bool]
    """Whether a verifier failed on the completion, or it is masked."""

    @property
    def order(self) -> tuple[int, str, int]:
        """Return the place of the row among those of a run."""
        return self.step, self.part, self.line

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
        return (
            row.part == self.part
            and self.only in ("", row.source)
            and (self.first or 0) <= row.step <= (math.inf if self.last is None else self.last)
            and (not self.ids or row.id in self.ids)
            and (self.spread is None or self._spread(row) >= self.spread)
            and bool(self.fitting(row))
        )

    def fitting(self, row: RowFacts) -> list[int]:
        """Return the numbers of the row's completions that fit, from 0."""
        low = -math.inf if self.least is None else self.least
        high = math.inf if self.most is None else self.most
        takes_unknown = not self.by and self.least is None and self.most is None
        return [
            g
            for g, value in enumerate(self._scores(row))
            if (row.failed[g] or not self.failed)
            and (takes_unknown if value is None else low <= value <= high)
        ]

    def _spread(self, row: RowFacts) -> float:
        known = [value for value in self._scores(row) if value is not None]
        if len(known) < 2:
            return -math.inf
        # The standard deviation of `statistics` is exact, and too slow for a long run.
        return math.dist(known, [fmean(known)] * len(known)) / math.sqrt(len(known))

    def _scores(self, row: RowFacts) -> Sequence[float | None]:
        return row.scores.get(self.by or REWARD) or (None,) * len(row.failed)


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


def encode(query: Mapping[str, object]) -> str:
    """Return a query for an address; what UTF-8 cannot say becomes question marks."""
    return urlencode(query, errors="replace")


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


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


class _File(NamedTuple):
    path: Path
    stamp: Stamp
    rows: list[RowFacts]
    damaged: int


class RowIndex:
    """The stored rows of one run, by step; `refresh` before each look."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: list[RowFacts] = []
        self._files: dict[tuple[str, int], _File] = {}

    @property
    def damaged(self) -> int:
        """Return how many lines are no rows."""
        return sum(file.damaged for file in self._files.values())

    def refresh(self) -> None:
        """Read the files that are new or have changed."""
        files = {}
        for part in PARTS:
            for step, path in run_folder.steps_in(self.folder / part, ".jsonl").items():
                try:
                    stamp = stamp_of(path.stat())
                    known = self._files.get((part, step))
                    fresh = known is not None and known.stamp == stamp
                    files[part, step] = known if known and fresh else _read(part, step, path, stamp)
                except FileNotFoundError:  # a resumed run has removed it meanwhile
                    continue
        self._files = files
        self.rows = sorted(
            (row for file in files.values() for row in file.rows), key=lambda row: row.order
        )

    def find(
        self, part: str, step: int, source: str, id_: str, line: int | None
    ) -> RowFacts | None:
        """Return a row of a step: the one in that line if it is it, else the first; None: there is none."""
        asked = (part, step, source, id_)
        rows = [row for row in self.rows if (row.part, row.step, row.source, row.id) == asked]
        return next((row for row in rows if row.line == line), rows[0] if rows else None)

    def answers(self, source: str, id_: str) -> list[RowFacts]:
        """Return all rows that ask this, by step."""
        return [row for row in self.rows if row.id == id_ and row.source == source]

    def chosen(self, wanted: RowFilter) -> list[RowFacts]:
        """Return the rows that match, by step."""
        return [row for row in self.rows if wanted.matches(row)]

    def neighbours(
        self, row: RowFacts, wanted: RowFilter
    ) -> tuple[RowFacts | None, RowFacts | None]:
        """Return the matching rows before and after one, which need not match itself."""
        rows = self.chosen(wanted)
        at = bisect_left(rows, row.order, key=lambda row: row.order)
        after = bisect_right(rows, row.order, key=lambda row: row.order)
        return (rows[at - 1] if at else None), (rows[after] if after < len(rows) else None)

    def names(self) -> tuple[list[str], list[str]]:
        """Return the sources and the verifiers of the rows."""
        verifiers = {name for row in self.rows for name in row.scores} - {REWARD}
        return sorted({row.source for row in self.rows}), sorted(verifiers)

    def load(self, row: RowFacts) -> Row:
        """Return a row with all that is stored of it.

        Raises:
            UserError: its file is gone, or was rewritten meanwhile.
        """
        path = self._files[row.part, row.step].path
        try:
            content = json.loads(path.read_bytes().split(b"\n")[row.line])
        except (OSError, IndexError, ValueError) as error:
            raise UserError(f"{path}: cannot be read: {error}") from error
        if not isinstance(content, dict):
            raise UserError(f"{path}: line {row.line + 1}: expected an object")
        return content

    def load_tokens(self, row: RowFacts) -> Row | None:
        """Return the tokens of a training row; None where none are stored of it."""
        path = run_folder.tokens_path(self.folder, row.step)
        if row.part != PARTS[0] or not path.is_file():
            return None
        try:
            content = json.loads(path.read_bytes().splitlines()[row.line])
        except (IndexError, ValueError):
            return None
        if not isinstance(content, dict):
            return None
        named = tuple(as_utf8(str(content.get(key))) for key in ("source", "id"))
        return content if named == (row.source, row.id) else None


def _read(part: str, step: int, path: Path, stamp: Stamp) -> _File:
    rows, damaged = [], 0
    for number, text in enumerate(path.read_bytes().split(b"\n")):
        if text:
            try:
                rows.append(_facts(part, step, number, _parse(text)))
            except (ValueError, RecursionError):
                damaged += 1
    return _File(path, stamp, rows, damaged)


def _parse(text: bytes) -> _Line:
    try:
        return _decode(text)
    except msgspec.DecodeError:  # a lone surrogate, say, which the fast reader refuses
        return msgspec.convert(json.loads(text), _Line)


def _facts(part: str, step: int, number: int, line: _Line) -> RowFacts:
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
    return RowFacts(part, step, number, source, as_utf8(line.id), drawn, scores, failed)


def as_utf8(text: str) -> str:
    """Return a name as an address can carry it: what UTF-8 cannot say is a question mark."""
    return text.encode("utf-8", "replace").decode()


# --------------------------------------------------------------------------------------------------
# Rows of a run to take along: as a data set to train or evaluate on, or as rows to attack a verifier with.
#
# A data set is a JSONL file (layout `selected_rows`) with copies of its media in a folder beside it, so
# that it can be moved. Each row of the run's data is written once, however many steps it was asked in.
# Attack rows are the completions themselves, each with its truth in the space that it writes coordinates in.


Originals = Callable[[str, MediaKind, str], Path | None]
"""Finds the file of a medium by source, kind and name; None: it cannot be had."""
SIZES = ("width", "height", "duration", "resized_width", "resized_height")
UNWRITTEN = ("track",)
"""Kinds of truth that no typed row states."""


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


def attack_lines(index: RowIndex, wanted: RowFilter) -> Iterator[dict[str, Any]]:
    """Yield the completions that fit as rows of `vlmrl verify --data`, each text once for a row.

    Raises:
        UserError: the truth of a row cannot be stated in the space of its completions.
    """
    seen = set()
    for facts in index.chosen(wanted):
        row = index.load(facts)
        about = _about(row, facts)
        group = f"{facts.source} {facts.id}, step {facts.step}"
        for g in wanted.fitting(facts):
            completion = row["completions"][g]
            key = (facts.source, facts.id, completion["text"])
            if key in seen:
                continue
            seen.add(key)
            reward = completion["reward"] if completion["valid"] else None
            yield {
                "id": f"{group}, answer {g + 1}",
                "completion": completion["text"],
                **about,
                "group": group,
                **({} if reward is None else {"reward": reward}),
            }


def _about(row: Row, facts: RowFacts) -> dict[str, Any]:
    """Return what all completions of a row have in common: prompt, truth, media, space and template.

    The truth, which is stored in the unit square, is in the frame's space.
    """
    stated = {key: value for key, value in row["frame"].items() if key in SIZES and value}
    space = row["frame"].get("space", "pixel")
    frame = Frame(**stated, space=space)
    try:
        truth = json_form.read(_stated(row), Frame(space="norm1"))
        known = {
            k: json_form.convert(v, frame) for k, v in truth.stated().items() if v is not False
        }
    except (UserError, ValueError) as error:
        raise UserError(f"row {facts.id!r} of {facts.source}: its truth: {error}") from error
    template = row.get("template")
    return {
        "prompt": row["question"],
        "truth": json_form.to_json(known) | ({"image": truth.image} if truth.image else {}),
        "media": [*[{}] * truth.image, stated] if truth.image else stated,
        "space": space,
        **({"template": template} if isinstance(template, str) else {}),
    }


def _stated(row: Row) -> dict[str, Any]:
    """Return what a stored truth states; `none` is only where there is nothing to find."""
    return {kind: value for kind, value in row["truth"].items() if value is not False}


class Written(NamedTuple):
    """How much was written; `copies` are media as the run stored them, instead of their own files."""

    rows: int
    media: int
    copies: int


def write_data_set(
    index: RowIndex, chosen: Sequence[RowFacts], out: Path, originals: Originals | None
) -> Written:
    """Write each of the chosen rows once, as it was stored last, and its media to a folder beside `out`.

    A medium is copied from its own file where `originals` finds it, else from what the run stored: images
    of at most 640 pixels, audio as it was heard.

    Raises:
        UserError: a row cannot be written, because of its truth or its media; the message names it.
    """
    newest = {(row.source, row.id): row for row in chosen}
    several = len({row.source for row in chosen}) > 1
    folder, lines, copies = run_folder.media_folder(index.folder), [], 0
    files: dict[str, Path] = {}
    for facts in newest.values():
        row = index.load(facts)
        truth = _stated(row)
        if unwritten := [kind for kind in UNWRITTEN if kind in truth]:
            raise UserError(
                f"row {facts.id!r} of {facts.source}: no row states a truth of kind {unwritten[0]}"
            )
        media = []
        for medium in row["media"]:
            path = _original(medium, facts, originals)
            if path is None:
                path, copies = _stored(medium, facts, folder), copies + 1
            name = path.name
            if path.parent != folder:
                digest = hashlib.sha256(str(path.absolute()).encode("utf-8", "replace")).hexdigest()
                name = f"{digest[:24]}{path.suffix}"
            inside = f"{out.stem}_media/{name}"
            files[inside] = path
            media.append((medium["kind"], inside))
        lines.append(
            {
                "id": f"{facts.source}/{facts.id}" if several else facts.id,
                **_conversation(row, media),
                "truth": truth,
                "selected_from": {
                    "run": str(index.folder),
                    "source": facts.source,
                    "part": facts.part,
                    "step": facts.step,
                    "rewards": list(facts.scores[REWARD]),
                },
            }
        )
    for inside, path in files.items():
        write_bytes(out.parent / inside, path.read_bytes())
    write_lines(out, lines)
    return Written(len(lines), len(files), copies)


def _original(
    medium: Mapping[str, Any], facts: RowFacts, originals: Originals | None
) -> Path | None:
    """Return a medium's own file, where there is one and all of it was shown."""
    if originals is None or medium["start"] is not None or medium["end"] is not None:
        return None
    path = originals(facts.source, medium["kind"], medium["name"])
    return path if path and path.is_file() else None


def _stored(medium: Mapping[str, Any], facts: RowFacts, folder: Path) -> Path:
    """Return what a run stored of a medium.

    Raises:
        UserError: it stored nothing of it that a row can refer to.
    """
    stored = medium.get("thumbnail") if medium["kind"] != "video" else None
    path = folder / Path(stored).name if stored else None
    if path is None or not path.is_file():
        cut = medium["start"] is not None or medium["end"] is not None
        why = (
            "only a part of it was shown"
            if cut
            else "its file is not there, and the run has no copy"
        )
        where = f"row {facts.id!r} of {facts.source}: {medium['kind']} {medium['name']!r:.200}"
        raise UserError(f"{where}: {why}")
    return path


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
