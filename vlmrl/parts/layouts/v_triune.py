"""V-Triune's Parquet rows: verl's, with a verifier, its options and its weights for each row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.data.files.rows import cell
from vlmrl.data.layout import DataPlace, Layout
from vlmrl.errors import UserError
from vlmrl.parts.layouts.row_forms import has_turns, media_columns, read_reply, read_turns

TRUTH = "reward_model.ground_truth"
VERIFIER = "reward_model.verifier"
PARAMETERS = "reward_model.verifier_parm"
RATIOS = f"{PARAMETERS}.det_reward_ratio"
MATCHINGS = {"iou_max_label_first": "label_first", "iou_max_iou_first": "greedy_iou"}
"""Parts of `det_reward_ratio` that measure IoU -> how `detection` finds pairs."""
PARTS = {"map": "map", "map50": "ap50", "map75": "ap75"}
"""Its other parts -> measures of `detection`."""
THRESHOLD = {"schedule": [[0, 0.85], [0.1, 0.95], [0.25, 0.99]]}
"""The IoU of a hit over the share of training done: the dynamic IoU reward of the paper."""
SIZE_PENALTY = 0.6
VERIFIERS = {"mathverify": "math", "detection": "detection"}
"""V-Triune's verifiers -> ours."""
FORMATS: dict[str, dict[str, Any]] = {
    "mathverify": {"partial": True, "own_lines": True},
    "detection": {"content": "boxes"},
}
"""V-Triune's verifiers -> the options of `format` beside them."""


@dataclass(frozen=True)
class VTriune(Layout):
    """Rows with `prompt`, `images` and `reward_model`, which names the row's own verifier.

    A row: {"data_source": "coco", "images": [{"bytes": ...}], "prompt": [{"role": "user", "content":
    "<image>Find all dogs."}], "ability": "detection", "reward_model": {"answer": "", "ground_truth":
    "<answer> [{'bbox_2d': [62, 125, 468, 833], 'label': 'dog'}] </answer>", "accuracy_ratio": 1.0,
    "format_ratio": 0.1, "verifier": "detection", "verifier_parm": {...}}, "extra_info": {"id": "1"}}.
    Boxes are from 0 to 1000. The row's `rewards` are its verifier weighted by `accuracy_ratio`, and
    `format` weighted by `format_ratio`. `verifier_parm.det_reward_ratio` becomes the options of
    `detection`: {"iou_max_label_first": 1.0, "iou_completeness": 0.3} is `matching: label_first, cut:
    true, weights: {truth_iou: 0.7, completeness: 0.3}, penalty: 0.6`, at the threshold 0.85, from a tenth
    of training on 0.95, from a quarter on 0.99. The `format` of `mathverify` pays a quarter for each tag that
    stands once on lines of its own, that of `detection` asks for boxes. Two ways to find pairs at once are
    refused.

    Source: V-Triune, verl/workers/reward_manager/remote.py and reward_server/verify.py.
    """

    title: ClassVar[str] = "V-Triune"
    origin: ClassVar[str] = "V-Triune, Ma et al. 2025, arXiv 2505.18129"
    narrows: ClassVar[tuple[str, ...]] = ("verl",)
    verifiers: ClassVar[tuple[str, ...]] = ("math", "detection", "format")
    reward_columns: ClassVar[tuple[str, ...]] = ("reward_model",)
    fields: ClassVar[Mapping[str, str]] = {
        "question": "prompt",
        "system": "prompt",
        "history": "prompt",
        "image": "images",
        "answer": TRUTH,
        "number": TRUTH,
        "boxes": TRUTH,
        "rewards": "reward_model.verifier, verifier_parm, accuracy_ratio and format_ratio",
        "meta": "data_source, ability",
    }

    def recognise(self, place: DataPlace) -> str | None:
        """Return why a place holds V-Triune's rows."""
        if not has_turns(place, "prompt", "role") or cell(place.head[0], VERIFIER) is None:
            return None
        return "rows have `prompt` and `reward_model.verifier`"

    def read(self, row: Mapping[str, object], place: DataPlace) -> dict[str, Any]:
        """Return a row under our keys."""
        ours, _ = read_turns(row.get("prompt"), media_columns(row), "prompt")
        meta = {key: row[key] for key in ("data_source", "ability") if row.get(key)}
        stated = {"id": cell(row, "extra_info.id"), **ours, "meta": meta, "box_space": "norm1000"}
        truth = read_reply(cell(row, TRUTH), ours["question"], TRUTH)
        return {**stated, **truth, "rewards": self.rewards_of(row)}

    def rewards_of(self, row: Mapping[str, object]) -> list[dict[str, Any]]:
        """Return the row's verifiers as a config names them; ratios that are missing are 1 and 0.1."""
        named = cell(row, VERIFIER)
        if named not in VERIFIERS:
            raise UserError(
                f"key {VERIFIER!r}: expected {' or '.join(VERIFIERS)}, got {named!r:.60}"
            )
        options = _detection_options(row) if named == "detection" else {}
        weights = _weight(row, "accuracy_ratio", 1.0), _weight(row, "format_ratio", 0.1)
        stated: list[dict[str, Any]] = [
            {"verifier": VERIFIERS[named], "weight": weights[0], "options": options},
            {"verifier": "format", "weight": weights[1], "options": FORMATS[named]},
        ]
        return [reward for reward in stated if reward["weight"] > 0]


def _weight(row: Mapping[str, object], key: str, default: float) -> float:
    weight = cell(row, f"reward_model.{key}")
    weight = default if weight is None else weight
    if not isinstance(weight, int | float) or not weight >= 0:
        raise UserError(f"key 'reward_model.{key}': expected a weight, got {weight!r:.60}")
    return float(weight)


def _detection_options(row: Mapping[str, object]) -> dict[str, Any]:
    """Return the options of `detection` that score as a row's `verifier_parm` says; {}: it says nothing.

    Source: reward_server/verify.py, DetectionVerifier.verify_accuracy.
    """
    style = cell(row, f"{PARAMETERS}.verifier_style")
    if style not in (None, "rule"):
        raise UserError(f"key '{PARAMETERS}.verifier_style': expected rule, got {style!r:.60}")
    stated = cell(row, RATIOS)
    if not isinstance(stated, Mapping) or all(value is None for value in stated.values()):
        if stated is None or isinstance(stated, Mapping):
            return {}
        raise UserError(f"key {RATIOS!r}: expected an object, got {stated!r:.60}")
    known = (*MATCHINGS, "iou_completeness", *PARTS)
    ratio = {key: _share(stated, key, known) for key in stated}
    pairs = [key for key in MATCHINGS if ratio.get(key)]
    if len(pairs) > 1:
        raise UserError(f"key {RATIOS!r}: expected one of {', '.join(pairs)} above 0, got both")
    weights = {ours: ratio[key] for key, ours in PARTS.items() if ratio.get(key)}
    completeness = ratio.get("iou_completeness", 0.0)
    for key in pairs:
        weights["truth_iou"] = ratio[key] * (1 - completeness)
        weights["completeness"] = ratio[key] * completeness
    if not weights:
        raise UserError(f"key {RATIOS!r}: expected a part above 0, got {dict(stated)}")
    options = {"matching": MATCHINGS[pairs[0]], "cut": True} if pairs else {}
    return {**options, "weights": weights, "threshold": THRESHOLD, "penalty": SIZE_PENALTY}


def _share(stated: Mapping[str, object], key: str, known: tuple[str, ...]) -> float:
    value = 0.0 if stated[key] is None else stated[key]
    if key not in known:
        raise UserError(f"key {RATIOS!r}: expected {', '.join(known)}, got {key!r:.40}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise UserError(f"key '{RATIOS}.{key}': expected a number from 0 to 1, got {value!r:.60}")
    return float(value)
