"""LVIS detection as text: boxes of 1,203 classes, of which each image was checked for some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Lvis(Benchmark):
    """LVIS v1 val; each image is asked for the classes that are known to be in it or not to be.

    Average precision by LVIS's rules: boxes of other classes do not count, nor do those of nothing
    where a class is not exhaustively annotated; 300 boxes an image. All boxes are equally sure and
    rank as they are listed; `ap_by_confidence` ranks by confidences that the answer states. The list
    of classes helps the model: the number is not that of detectors, which know all 1,203.

    Source: Gupta et al. 2019, arXiv 1908.03195; lvisdataset.org, lvis_v1_val.json, and COCO's folders
    train2017 and val2017.
    """

    origin: ClassVar[str] = "https://www.lvisdataset.org"
    licence: ClassVar[str] = "annotations: CC-BY-4.0; images: Flickr's terms"
    hub: ClassVar[str] = "https://www.lvisdataset.org/dataset"
    checked: ClassVar[str] = (
        "layout: lvis 0.5.3; the count is that of LVIS's page, not read off its file; 2026-11"
    )
    split: ClassVar[str] = "val"
    count: ClassVar[int] = 19809
    files: ClassVar[tuple[str, ...]] = ("lvis_v1_val.json",)
    layout = "coco"
    columns: ClassVar[Mapping[str, str]] = {
        "id": "id", "image": "file", "question": "ask", "boxes": "boxes", "box_labels": "labels",
        "width": "width", "height": "height", "none": "empty",
    }  # fmt: skip
    box_space: ClassVar[str] = "pixel"
    box_format: ClassVar[str] = "xywh"
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lviseval@0.5.3",
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
        """Add our question; an image without a checked class has nothing to find."""
        ask = f"Find every object of these classes and label it: {row['asked']}."
        return {**row, "ask": ask, "empty": not row["boxes"]}
