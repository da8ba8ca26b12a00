"""verl's Parquet rows: a prompt of messages, images, and the truth under reward_model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.data.files.rows import cell
from vlmrl.data.layout import DataPlace, Layout
from vlmrl.parts.layouts.row_forms import has_turns, media_columns, read_reply, read_turns

TRUTH = "reward_model.ground_truth"


@dataclass(frozen=True)
class Verl(Layout):
    """Rows with `prompt`, `images` and, in `reward_model`, a `ground_truth`.

    A row: {"data_source": "geo3k", "prompt": [{"role": "user", "content": "<image>Find x."}],
    "images": [{"bytes": ...}], "ability": "math", "reward_model": {"style": "rule", "ground_truth":
    "48"}, "extra_info": {"split": "train", "index": 0}}.

    Source: verl, examples/data_preprocess/geo3k.py.
    """

    title: ClassVar[str] = "verl"
    origin: ClassVar[str] = "verl (HybridFlow), Sheng et al. 2024, arXiv 2409.19256"
    fields: ClassVar[Mapping[str, str]] = {
        "question": "prompt",
        "system": "prompt",
        "history": "prompt",
        "image": "images",
        "video": "videos",
        "answer": TRUTH,
        "number": TRUTH,
        "boxes": TRUTH,
        "meta": "data_source, ability",
    }

    def recognise(self, place: DataPlace) -> str | None:
        """Return why a place holds verl's rows."""
        fits = has_turns(place, "prompt", "role") and cell(place.head[0], TRUTH) is not None
        return "rows have `prompt` and `reward_model.ground_truth`" if fits else None

    def read(self, row: Mapping[str, object], place: DataPlace) -> dict[str, Any]:
        """Return a row under our keys."""
        ours, _ = read_turns(row.get("prompt"), media_columns(row), "prompt")
        meta = {key: row[key] for key in ("data_source", "ability") if row.get(key)}
        stated = {"id": cell(row, "extra_info.id"), **ours, "meta": meta}
        return {**stated, **read_reply(cell(row, TRUTH), ours["question"], TRUTH)}
