"""ReasonSeg: a box around what a sentence implies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.rows import box_of_mask


@dataclass(frozen=True)
class Reasonseg(Benchmark):
    """ReasonSeg's test split, the box of all that the sentence means; the mean IoU.

    Visual-RFT takes the box of the first polygon of an image alone as its truth; here it is that of
    the whole mask, so that the numbers agree only where there is one polygon.

    Source: Lai et al. 2023, LISA, arXiv 2308.00692; Visual-RFT, lisa_evaluation; data as in Seg-Zero.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/Ricky06662/ReasonSeg_test"
    licence: ClassVar[str] = "CC-BY-NC-4.0"
    hub: ClassVar[str] = "Ricky06662/ReasonSeg_test"
    checked: ClassVar[str] = (
        "count, columns and licence: hub card; rule: Visual-RFT at 9486633, 2026-11"
    )
    count: ClassVar[int] = 779
    columns: ClassVar[Mapping[str, str]] = {
        "id": "ann_id", "image": "image", "question": "ask", "boxes": "corners",
        "width": "img_width", "height": "img_height",
    }  # fmt: skip
    box_space: ClassVar[str] = "pixel"
    cluster: ClassVar[str] = "image_id"
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "visual_rft@9486633",
            ask="{text}\nFirst output the thinking process in <think> </think> tags and then output "
            "the final answer in <answer> </answer> tags, as (x1,y1),(x2,y2).",
            max_tokens=128,
            scorer="box_corner_pairs",
        ),
    )
    strict: ClassVar[Strict] = Strict("box_iou", {}, also=("recall_at_0.5",))

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add our question, and the box of the mask."""
        corners = box_of_mask(row, "mask")
        return {**row, "ask": f"Give the bounding box of: {row['text']}", "corners": [corners]}
