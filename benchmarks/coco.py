"""COCO detection as text: the boxes of 80 classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Coco(Benchmark):
    """COCO's val2017, all 80 classes asked of every image: average precision as COCOeval computes it.

    No harness asks it. All boxes are equally sure and rank as they are listed; `ap_by_confidence`
    ranks by confidences that the answer states. Strict is the F1 at IoU 0.5, with the shares of
    objects missed and of boxes that are none. Papers that ask only for classes that are in the image
    report more.

    Source: Lin et al. 2014, arXiv 1405.0312; cocodataset.org, annotations/instances_val2017.json and
    the folder val2017.
    """

    origin: ClassVar[str] = "https://cocodataset.org"
    licence: ClassVar[str] = "annotations: CC-BY-4.0; images: Flickr's terms"
    hub: ClassVar[str] = "https://cocodataset.org/#download"
    checked: ClassVar[str] = "layout: pycocotools; the count is that of COCO's page; 2026-11"
    split: ClassVar[str] = "val"
    count: ClassVar[int] = 5000
    files: ClassVar[tuple[str, ...]] = ("annotations/instances_val2017.json",)
    layout = "coco"
    columns: ClassVar[Mapping[str, str]] = {
        "id": "id", "image": "image", "question": "ask", "boxes": "boxes", "box_labels": "labels",
        "width": "width", "height": "height", "none": "empty",
    }  # fmt: skip
    box_space: ClassVar[str] = "pixel"
    box_format: ClassVar[str] = "xywh"
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "cocoeval@2.0.11",
            ask="Locate every instance that belongs to the following categories: {asked}. "
            "Report bbox coordinates in JSON format.",
            max_tokens=4096,
            scorer="boxes_listed",
            aggregate="ap",
            also=("ap50", "ap_by_confidence"),
        ),
    )
    strict: ClassVar[Strict] = Strict(
        "detection", {"weights": {"f1": 1.0}}, aggregate="box_f1", also=("misses", "extras")
    )

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the image's folder, and our question."""
        ask = f"Find every object of these classes and label it: {row['asked']}."
        image = f"val2017/{row['file']}"
        return {**row, "image": image, "ask": ask, "empty": not row["boxes"]}
