"""Data sets of the card `records` as items, and whether a sample in another layout is the same one."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from helpers.layout_forms.items import Form, Item
from helpers.layout_forms.table import contents, open_form, stated
from vlmrl.config import SourceConfig
from vlmrl.data.source import open_source
from vlmrl.schema import Sample, Truth

Pair = tuple[Item, Sample]
"""An item and the sample that the card `records` makes of its row."""


def records(folder: Path, split: str, most: int | None = None) -> list[Pair]:
    """Return the rows of a split, at most `most` of each task; no layout says spans, so none of those."""
    options = {"path": str(folder), "native": False}
    source = open_source(SourceConfig(card="records", options=options, split=split))
    found: list[Pair] = []
    seen: dict[str, int] = defaultdict(int)
    for index in range(len(source.rows)):
        row, sample = source.rows[index], source.sample(index)
        seen[row["task"]] += 1
        if row.get("span") is None and (most is None or seen[row["task"]] <= most):
            found.append((_item(row, sample, f"{folder.name}_{index:05}"), sample))
    return found


def _item(row: Any, sample: Sample, name: str) -> Item:
    files = [Path(medium.path or "") for medium in sample.media]
    media = tuple((f"{name}_{file.name}", file.read_bytes()) for file in files)
    placed = sample.truth.boxes is not None
    size = (row.get("width", 1), row.get("height", 1))
    text = sample.text.strip()
    if not placed:
        kind = sample.media[0].kind
        return Item(media, size, text, row["answer"], kind=kind, phrase=text)
    boxes = tuple(tuple(map(float, box)) for box in row["boxes"])
    return Item(media, size, text, None, boxes, tuple(row["labels"]), phrase=text)


def differences(form: Form, folder: Path, pairs: list[Pair]) -> tuple[int, list[str]]:
    """Write the items that a form holds, read them back, and say how many there were and what differs."""
    kept = form.takes([item for item, _ in pairs])
    right = [sample for item, sample in pairs if any(item is each for each in kept)]
    if not kept:
        return 0, []
    source = open_form(form, form.write(folder, kept))
    found = [source.sample(index) for index in range(len(source.rows))]
    if len(found) != len(kept):
        return len(kept), [f"{form.name}: {len(found)} rows of {len(kept)}"]
    triples = zip(kept, right, found, strict=True)
    return len(kept), [
        f"{form.name}: {sample.id}: {what}"
        for item, sample, read in triples
        if (what := _difference(form, item, sample, read))
    ]


def _difference(form: Form, item: Item, right: Sample, found: Sample) -> str:
    """What of a sample is not as it was; empty: nothing."""
    if contents(found) != contents(right) or [m.kind for m in found.media] != [item.kind] * len(
        right.media
    ):
        return "other media"
    if form.keeps_prompt and found.text.strip() != right.text.strip():
        return f"asked {found.text!r}"
    if form.truth is not None:
        same = stated(found.truth) == stated(form.truth(item))
        return "" if same else f"true is {json.dumps(stated(found.truth))}"
    same = (
        _same_boxes(form, right.truth, found.truth)
        if item.answer is None
        else _same_answer(item.answer, right.truth, found.truth)
    )
    return "" if same else f"true is {found.truth}, not {right.truth}"


def _same_boxes(form: Form, right: Truth, found: Truth) -> bool:
    if found.none != right.none or len(found.boxes or ()) != len(right.boxes or ()):
        return False
    for a, b in zip(found.boxes or (), right.boxes or (), strict=True):
        corners = [(x.x1, x.y1, x.x2, x.y2) for x in (a, b)]
        if corners[0] != pytest.approx(corners[1], abs=1e-9) or (
            form.labels and a.label != b.label
        ):
            return False
    return True


def _same_answer(answer: str, right: Truth, found: Truth) -> bool:
    """Whether a text, a number or an option is the same; a choice may come back as its text."""
    if right.number is not None and found.number != right.number:
        return False
    if found.choice is not None:
        return found.choice == right.choice and found.options == right.options
    return found.text == (answer.strip(),)
