"""ODinW-13: detection in thirteen domains, from drones to mushrooms."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Odinw13(Benchmark):
    """ODinW-13's test images: the mean over its data sets of the average precision, all boxes equally sure.

    lmms-eval takes each box as pixels, as 0-1 or as 0-1000, whichever fits the truth, and counts
    boxes of nothing in its precision only; also: AP at IoU 0.5, and the share of objects found
    (ACC@0.5). Strict is the F1 at IoU 0.5 of the declared space.

    Source: Li et al. 2022, ELEVATER, arXiv 2204.08790; lmms-eval tasks/odinw13.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/kcz358/ODinW-13"
    licence: ClassVar[str] = "that of each of its data sets"
    hub: ClassVar[str] = "kcz358/ODinW-13"
    checked: ClassVar[str] = "columns: lmms-eval; the count was not read off the hub; 2026-11"
    count: ClassVar[int] = 4938
    columns: ClassVar[Mapping[str, str]] = {
        "image": "image", "question": "ask", "boxes": "bboxes", "box_labels": "labels", "none": "empty",
    }  # fmt: skip
    box_space: ClassVar[str] = "pixel"
    groups: ClassVar[tuple[str, ...]] = ("dataset_name",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="Locate every instance that belongs to the following categories: ´{asked}´. "
            "Report bbox coordinates in JSON format.",
            max_tokens=8192,
            scorer="boxes_odinw",
            aggregate="ap_of_groups",
            by="dataset_name",
            also=("ap50_of_groups by dataset_name", "mean_over_truths_of_groups by dataset_name"),
        ),
    )
    strict: ClassVar[Strict] = Strict(
        "detection",
        {"weights": {"f1": 1.0}},
        aggregate="box_f1",
        also=("misses", "extras", "ap_of_groups by dataset_name", "ap_by_confidence"),
    )

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the classes as text."""
        asked = ", ".join(row["categories"])
        ask = f"Find every object of these classes and label it: {asked}."
        listed = json.dumps(row["categories"])
        empty = not row["bboxes"]
        return {**row, "ask": ask, "asked": asked, "categories": listed, "empty": empty}
