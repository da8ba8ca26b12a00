"""Rows of a run to take along: as a data set to train or evaluate on, or as rows to attack a verifier with.

A data set is a JSONL file (layout `selected_rows`) with copies of its media in a folder beside it, so that it
can be moved. Each row of the run's data is written once, however many steps it was asked in. Attack rows are
the completions themselves, each with its truth in the space that it writes coordinates in.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from vlmrl.data.cards.conversation import LISTS
from vlmrl.errors import UserError
from vlmrl.report.rows.row_index import PARTS, RowFacts, RowFilter, RowIndex
from vlmrl.runs import run_folder
from vlmrl.runs.rollout_rows import Row
from vlmrl.schema import Frame, MediaKind
from vlmrl.system.atomic_files import write_bytes, write_lines
from vlmrl.truths import json_form

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
    given = {name: value for name, value in options.items() if value not in ("", PARTS[0])}
    for name, ends in (
        ("--steps", (wanted.first, wanted.last)),
        ("--score", (wanted.least, wanted.most)),
    ):
        if any(end is not None for end in ends):
            given[name] = ":".join("" if end is None else f"{end:g}" for end in ends)
    if wanted.spread is not None:
        given["--spread"] = f"{wanted.spread:g}"
    words += [word for pair in given.items() for word in pair]
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
    found: dict[str, Any] = {"question": row["question"], **_by_kind(media[at:])}
    return (
        found | ({"system": system} if system else {}) | ({"history": history} if history else {})
    )


def _by_kind(media: list[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for kind, path in media:
        found.setdefault(LISTS[kind], []).append(path)
    return found


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
