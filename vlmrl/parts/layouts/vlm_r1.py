"""VLM-R1's rows: its JSONL with conversations, and its JSON with a problem and a box as the solution."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.data import multiple_choice
from vlmrl.data.files.opening import file_split, open_rows
from vlmrl.data.files.rows import JoinedRows, Rows, RowsView
from vlmrl.data.layout import DataPlace, Layout
from vlmrl.errors import UserError
from vlmrl.parts.layouts.annotated_objects import find_file, one_split
from vlmrl.parts.layouts.row_forms import has_turns, media_columns, read_reply, read_turns

METHOD = "accu_reward_method"
VERIFIERS: dict[str, dict[str, Any]] = {
    "mcq": {"verifier": "choice"},
    "yes_no": {"verifier": "yes_no"},
    "math": {"verifier": "math"},
    "map": {"verifier": "detection", "options": {"weights": {"ap50": 1.0}}},
    "od_ap": {"verifier": "detection", "options": {"weights": {"map": 1.0}}},
    "od_ap50": {"verifier": "detection", "options": {"weights": {"ap50": 1.0}}},
    "odLength": {
        "verifier": "detection",
        "options": {"weights": {"map": 1.0}, "length_factor": True},
    },
    "weighted_sum": {
        "verifier": "detection",
        "options": {
            "matching": "greedy_iou",
            "cut": True,
            "weights": {"truth_iou": 0.7, "completeness": 0.3},
        },
    },
}
"""`accu_reward_method` -> the verifier that scores like it; a row with another is the config's."""


@dataclass(frozen=True)
class VlmR1(Layout):
    """Referring expressions and questions of VLM-R1, boxes in pixels of the original image.

    A row of the JSONL: {"id": 1, "image": "a.jpg", "conversations": [{"from": "human", "value":
    "<image>Where is the dog?"}, {"from": "gpt", "value": [4, 6, 30, 40]}], "accu_reward_method": "default"}.
    A row of the JSON: {"image": "a.jpg", "problem": "Where is the dog?", "solution": [4, 6, 30, 40]}.
    A list of {bbox_2d, label}, fenced or not, is read as boxes, and `None` as nothing. Where a row has an
    `accu_reward_method` that is one of `VERIFIERS`, that verifier and `format` are its `rewards`.
    A YAML file lists several such files: `datasets: [{json_path: a.json, sampling_strategy: "first:10%"}]`;
    they are looked for next to it.

    Source: VLM-R1, README.md and src/open-r1-multimodal/src/open_r1/grpo_jsonl.py; the JSON and the
    YAML as its issue 11 and its first version show them.
    """

    title: ClassVar[str] = "VLM-R1"
    origin: ClassVar[str] = "VLM-R1, Shen et al. 2025, arXiv 2504.07615"
    narrows: ClassVar[tuple[str, ...]] = ("llava", "trl")
    fields: ClassVar[Mapping[str, str]] = {
        "question": "conversations or problem",
        "image": "image",
        "answer": "conversations or solution",
        "boxes": "conversations or solution",
        "width": "width",
        "height": "height",
        "rewards": "accu_reward_method",
        "meta": "accu_reward_method, normal_caption",
    }
    verifiers: ClassVar[tuple[str, ...]] = ("box_iou", "detection", "choice", "math", "yes_no")
    reward_columns: ClassVar[tuple[str, ...]] = (METHOD,)

    def recognise(self, place: DataPlace) -> str | None:
        """Return why a place holds VLM-R1's rows."""
        if listed := _listed(place):
            return f"`datasets` lists {len(listed)} data files under `json_path`"
        if not place.has_keys("image"):
            return None
        if has_turns(place, "conversations", "from") and not place.has_keys("images"):
            return _why(place)
        box = place.has_keys("problem", "solution") and place.head[0]["solution"]
        return "rows have `problem` and a box as `solution`" if isinstance(box, list) else None

    def splits(self, place: DataPlace) -> tuple[str, ...]:
        """Return the place's own splits; `train` for a YAML file."""
        return ("train",) if _listed(place) else place.splits

    def rows(self, place: DataPlace, split: str) -> Rows:
        """Return the rows of a data file, or of all that a YAML file lists."""
        listed = _listed(place)
        if not listed:
            return place.rows(split)
        one_split(place, split, ("train",))
        return JoinedRows([_cut(place, item) for item in listed])

    def read(self, row: Mapping[str, object], place: DataPlace) -> dict[str, Any]:
        """Return a row under our keys."""
        if "conversations" in row:
            key, turns = "conversations", row["conversations"]
            # Replies may be a number or a list as well.
            if isinstance(turns, list) and all(isinstance(turn, Mapping) for turn in turns):
                turns = [{**turn, "value": _text(turn.get("value"))} for turn in turns]
        else:
            key = "solution"
            turns = [{"from": "human", "value": row.get("problem")}]
            turns += [{"from": "gpt", "value": _text(row.get("solution"))}]
        ours, reply = read_turns(turns, media_columns(row), key, "from", "value")
        meta = {k: row[k] for k in (METHOD, "normal_caption") if k in row}
        size = {k: row[k] for k in ("width", "height") if k in row}
        stated = {"id": row.get("id"), **ours, **size, "meta": meta}
        if key == "solution" or _is_ours(row) or "bbox_2d" in str(reply):
            stated["box_space"] = "pixel"
        stated["rewards"] = self.rewards_of(row)
        if row.get(METHOD) == "mcq" and (options := multiple_choice.inline(ours["question"])):
            truth = multiple_choice.choice_truth(options, str(reply))
            chosen = {"choice": truth.choice, "options": list(options)}
            return {**stated, **chosen, "answer": [*(truth.text or ())]}
        return {**stated, **read_reply(reply, ours["question"], key)}

    def rewards_of(self, row: Mapping[str, object]) -> list[Any] | None:
        """Return the verifiers of a row's method, as in VLM-R1 with the format; None: the config's."""
        verifier = VERIFIERS.get(str(row.get(METHOD)))
        return None if verifier is None else [verifier, "format"]


def _why(place: DataPlace) -> str | None:
    """Return what tells rows of `image` and `conversations` from LLaVA's; None: nothing does.

    LLaVA writes texts as replies and as ids; VLM-R1's own example has a whole number as the id.
    """
    if any(METHOD in row for row in place.head):
        return f"rows have `conversations` and `{METHOD}`"
    if any(map(_is_ours, place.head)):
        return "rows have `conversations` with a reply that is no text"
    lines = place.path.suffix == ".jsonl" or any(n.endswith(".jsonl") for n in place.names)
    numbered = all(isinstance(row.get("id"), int) for row in place.head)
    short = all(len(row.get("conversations") or ()) == 2 for row in place.head)
    fits = lines and numbered and short
    return "JSONL of one question and answer each, `id` a number" if fits else None


def _is_ours(row: Mapping[str, object]) -> bool:
    """Return whether a row has what only VLM-R1 writes: a method, or a reply that is no text."""
    turns = row.get("conversations")
    replies = turns if isinstance(turns, list) else []
    return METHOD in row or any(
        isinstance(turn, Mapping) and not isinstance(turn.get("value", ""), str) for turn in replies
    )


def _listed(place: DataPlace) -> list[Mapping[str, Any]]:
    """Return the data files that a YAML file lists; empty: it is none, or lists none."""
    listed = place.settings.get("datasets")
    fits = isinstance(listed, list) and all(
        isinstance(item, Mapping) and isinstance(item.get("json_path"), str) for item in listed
    )
    return listed if fits and isinstance(listed, list) else []


def _cut(place: DataPlace, item: Mapping[str, object]) -> Rows:
    file = find_file(place.home, item["json_path"], "json_path")
    rows = open_rows(file, file_split(file))
    stated = item.get("sampling_strategy") or "all"
    kind, _, size = str(stated).partition(":")
    if stated == "all":
        return rows
    if kind not in ("first", "end") or not size.removesuffix("%").isdigit():
        raise UserError(
            f"{place.path}: key 'sampling_strategy': expected all, first:N, first:N%, end:N or end:N%, "
            f"got {stated!r:.60}"
        )
    number = int(size.removesuffix("%"))
    count = min(len(rows), math.ceil(number * len(rows) / 100) if size[-1] == "%" else number)
    return RowsView(rows, range(count) if kind == "first" else range(len(rows) - count, len(rows)))


def _text(value: object) -> str:
    if not isinstance(value, str | int | float | list):
        raise UserError(f"expected a text, a number or a box as the answer, got {value!r:.60}")
    return str(value)
