"""ReasonSeg as segmentation: an outline of what a sentence implies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Official, Strict
from vlmrl.benchmarking.rows import mask_of
from vlmrl.benchmarks.reasonseg import Reasonseg


@dataclass(frozen=True)
class ReasonsegMask(Reasonseg):
    """ReasonSeg's test split, outlines written as text; the mean IoU with the mask, LISA's gIoU,
    but that an IoU below 0.1 is 0: a grid of boxes would hit everything a little.

    No harness asks it: papers draw the mask with a segmentation model, from a box or from a token of
    its own, and their numbers are that model's too.

    Source: Lai et al. 2023, LISA, arXiv 2308.00692; data as in Seg-Zero.
    """

    columns: ClassVar[Mapping[str, str]] = {
        "id": "ann_id", "image": "image", "question": "ask", "masks": "region",
        "width": "img_width", "height": "img_height",
    }  # fmt: skip
    officials: ClassVar[tuple[Official, ...]] = ()
    strict: ClassVar[Strict] = Strict("mask_iou", {"threshold": 0.1})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add our question, and the mask as run lengths."""
        return {**row, "ask": f"Outline: {row['text']}", "region": [mask_of(row, "mask")]}
