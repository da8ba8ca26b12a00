"""V-Triune's Parquet rows: verl's, with a verifier, its options and its weights for each row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.data.files.rows import cell
from vlmrl.data.layouts.base import Layout, Place
from vlmrl.data.layouts.conversations import has_turns, read_turns
from vlmrl.data.layouts.media_columns import media_columns
from vlmrl.data.layouts.replies import read_reply
from vlmrl.errors import UserError

TRUTH = "reward_model.ground_truth"
VERIFIER = "reward_model.verifier"
VERIFIERS = {"mathverify": "math", "detection": "detection"}
"""V-Triune's verifiers -> ours."""


@dataclass(frozen=True)
class VTriune(Layout):
    """Rows with `prompt`, `images` and `reward_model`, which names the row's own verifier.

    A row: {"data_source": "coco", "images": [{"bytes": ...}], "prompt": [{"role": "user", "content":
    "<image>Find all dogs."}], "ability": "detection", "reward_model": {"answer": "", "ground_truth":
    "<answer> [{'bbox_2d': [62, 125, 468, 833], 'label': 'dog'}] </answer>", "accuracy_ratio": 1.0,
    "format_ratio": 0.1, "verifier": "detection", "verifier_parm": {...}}, "extra_info": {"id": "1"}}.
    Boxes are from 0 to 1000. The row's `rewards` are its verifier weighted by `accuracy_ratio`, and
    `format` weighted by `format_ratio`; `verifier_parm` is noted in `meta`.

    Source: V-Triune, verl/workers/reward_manager/remote.py and reward_server/verify.py.
    """

    title: ClassVar[str] = "V-Triune"
    origin: ClassVar[str] = "V-Triune, Ma et al. 2025, arXiv 2505.18129"
    narrows: ClassVar[tuple[str, ...]] = ("verl",)
    verifiers: ClassVar[tuple[str, ...]] = ("math", "detection", "format")
    fields: ClassVar[Mapping[str, str]] = {
        "question": "prompt",
        "system": "prompt",
        "history": "prompt",
        "image": "images",
        "answer": TRUTH,
        "number": TRUTH,
        "boxes": TRUTH,
        "rewards": "reward_model.verifier, accuracy_ratio and format_ratio",
        "meta": "data_source, ability, reward_model.verifier_parm",
    }

    def recognise(self, place: Place) -> str | None:
        """Return why a place holds V-Triune's rows."""
        if not has_turns(place, "prompt", "role") or cell(place.head[0], VERIFIER) is None:
            return None
        return "rows have `prompt` and `reward_model.verifier`"

    def read(self, row: Mapping[str, Any], place: Place) -> dict[str, Any]:
        """Return a row under our keys."""
        ours, _ = read_turns(row.get("prompt"), media_columns(row), "prompt")
        meta = {key: row[key] for key in ("data_source", "ability") if row.get(key)}
        options = cell(row, "reward_model.verifier_parm")
        meta |= {"verifier_parm": options} if options else {}
        stated = {"id": cell(row, "extra_info.id"), **ours, "meta": meta, "box_space": "norm1000"}
        truth = read_reply(cell(row, TRUTH), ours["question"], TRUTH)
        return {**stated, **truth, "rewards": _rewards(row)}


def _rewards(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the row's verifiers as a config names them; ratios that are missing are 1 and 0.1."""
    named = cell(row, VERIFIER)
    if named not in VERIFIERS:
        raise UserError(f"key {VERIFIER!r}: expected {' or '.join(VERIFIERS)}, got {named!r:.60}")
    weights = {}
    for key, default in (("accuracy_ratio", 1.0), ("format_ratio", 0.1)):
        weight = cell(row, f"reward_model.{key}")
        weight = default if weight is None else weight
        if not isinstance(weight, int | float) or not weight >= 0:
            raise UserError(f"key 'reward_model.{key}': expected a weight, got {weight!r:.60}")
        weights[key] = float(weight)
    named_weights = {VERIFIERS[named]: "accuracy_ratio", "format": "format_ratio"}
    stated = {verifier: weights[key] for verifier, key in named_weights.items()}
    return [{"verifier": v, "weight": weight} for v, weight in stated.items() if weight > 0]
