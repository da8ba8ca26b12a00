"""LLaMA-Factory's `dataset_info.json`: data sets by name, with their files and names of columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from vlmrl.data.files import text_rows
from vlmrl.data.files.opening import file_split, open_rows
from vlmrl.data.files.rows import WHERE, Rows
from vlmrl.data.layout import DataPlace, Layout
from vlmrl.errors import UserError
from vlmrl.parts.layouts.alpaca import Alpaca
from vlmrl.parts.layouts.annotated_objects import find_file, one_split, split_of
from vlmrl.parts.layouts.sharegpt import Sharegpt

SOURCES = ("file_name", "hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name")
ALPACA = {"prompt": "instruction", "query": "input", "response": "output"}
"""Our name of a column (key of `columns`) -> what it is called by default."""
SHAREGPT = {"messages": "conversations"}
BESIDE = ("system", "history", "images", "videos", "audios")
"""Columns that only `columns` names."""
TAGS = {"human": "user_tag", "gpt": "assistant_tag", "system": "system_tag"}


@dataclass(frozen=True)
class DatasetInfo(Layout):
    """A file `dataset_info.json`, or its folder: its data sets are the splits.

    A data set is called `test` (or `train`, `val` ...) where its name or its file's ends with that
    ("cats_test") and no other one's does; what says nothing is `train`. Its own name means it, too.

    An entry: {"cats": {"file_name": "cats.json", "formatting": "sharegpt", "columns": {"messages":
    "turns", "images": "photos"}, "tags": {"role_tag": "role", "content_tag": "content", "user_tag":
    "user", "assistant_tag": "assistant"}}}. Without `formatting` it is Alpaca's. Preference data
    (`ranking`) and data sets of a hub are refused.

    Source: LLaMA-Factory, data/README.md.
    """

    title: ClassVar[str] = "LLaMA-Factory dataset_info.json"
    origin: ClassVar[str] = "LLaMA-Factory, Zheng et al. 2024, arXiv 2403.13372"
    narrows: ClassVar[tuple[str, ...]] = ("alpaca", "sharegpt", "llava", "messages")
    fields: ClassVar[Mapping[str, str]] = {
        "question": "columns.messages, or columns.prompt and columns.query",
        "system": "columns.system",
        "history": "columns.messages or columns.history",
        "image": "columns.images",
        "video": "columns.videos",
        "audio": "columns.audios",
        "answer": "columns.messages or columns.response",
        "boxes": "columns.messages or columns.response",
    }

    def recognise(self, place: DataPlace) -> str | None:
        """Return why a place is LLaMA-Factory's list of data sets."""
        names = list(_of(place))
        return f"dataset_info.json describes {', '.join(names[:3])}" if names else None

    def splits(self, place: DataPlace) -> tuple[str, ...]:
        """Return the splits that data sets are called, or their names."""
        named = _names(place)
        return tuple({name: split for split, name in named.items()}.get(n, n) for n in _of(place))

    def rows(self, place: DataPlace, split: str) -> Rows:
        """Return the rows of a data set, each with its description."""
        name = _names(place).get(split, split)
        one_split(place, name, tuple(_of(place)))
        entry = _of(place)[name]
        where = f"{place.home}: data set {split!r}"
        if "file_name" not in entry:
            raise UserError(
                f"{where}: expected file_name, got {', '.join(entry)}; use hf:// instead"
            )
        if entry.get("ranking") or "kto_tag" in entry.get("columns", {}):
            raise UserError(f"{where}: preference data have no right answer, which rewards need")
        file = find_file(place.home, entry["file_name"], f"{split}.file_name")
        rows = open_rows(file, "train" if file.is_dir() else file_split(file))
        return DescribedRows(rows, entry)

    def read(self, row: Mapping[str, Any], place: DataPlace) -> dict[str, Any]:
        """Return a row under our keys."""
        return row["reader"].read(row["row"], place)


class DescribedRows(Sequence[Mapping[str, Any]]):
    """Rows under the names of columns that LLaMA-Factory uses by default."""

    def __init__(self, rows: Rows, entry: Mapping[str, Any]) -> None:
        self._rows, self._tags = rows, dict(entry.get("tags") or {})
        self._chat = entry.get("formatting", "alpaca") == "sharegpt"
        stated = dict(entry.get("columns") or {})
        default = SHAREGPT if self._chat else ALPACA
        self._columns = {ours: stated.get(key, ours) for key, ours in default.items()}
        self._columns |= {key: stated[key] for key in BESIDE if key in stated}
        self._reader = Sharegpt() if self._chat else Alpaca()

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        row = self._rows[index]
        renamed = {ours: row[theirs] for ours, theirs in self._columns.items() if theirs in row}
        if self._chat and isinstance(renamed.get("conversations"), list):
            renamed["conversations"] = [self._turn(turn) for turn in renamed["conversations"]]
        return {"row": {**renamed, "id": row.get("id")}, "reader": self._reader, WHERE: row[WHERE]}

    def _turn(self, turn: object) -> Any:
        if not isinstance(turn, Mapping):
            return turn
        tag_value = turn.get(self._tags.get("role_tag", "from"))
        roles = {self._tags.get(tag, role): role for role, tag in TAGS.items()}
        return {
            "from": roles.get(str(tag_value), tag_value),
            "value": turn.get(self._tags.get("content_tag", "value")),
        }


def _of(place: DataPlace) -> Mapping[str, Mapping[str, Any]]:
    return place.once("dataset_info", lambda: _entries(place))


def _names(place: DataPlace) -> Mapping[str, str]:
    """Return split -> the name of the one data set with a file that is called so."""
    called: dict[str, list[str]] = {}
    for name, entry in _of(place).items():
        if "file_name" in entry:
            stems = (name, Path(str(entry["file_name"])).stem)
            called.setdefault(next(filter(None, map(split_of, stems)), "train"), []).append(name)
    return {split: names[0] for split, names in called.items() if len(names) == 1}


def _entries(place: DataPlace) -> dict[str, Mapping[str, Any]]:
    """Return the data sets of a `dataset_info.json` by name; empty: the place is none."""
    if place.path.is_dir():
        file = place.path / "dataset_info.json"
        return _entries(DataPlace(file)) if file.is_file() else {}
    if place.path.name != "dataset_info.json":
        return {}
    entries = {name: text_rows.load(text) for name, text in place.document.items()}
    fits = all(
        isinstance(entry, Mapping) and any(key in entry for key in SOURCES)
        for entry in entries.values()
    )
    return entries if fits else {}
