"""RefCOCOg: a box around the object that an expression describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Refcocog(Benchmark):
    """RefCOCOg's test split; the share of boxes with an IoU of at least 0.5, one row an expression.

    The test split is that of papers ("umd"); `val` is not: it holds their 2,573 objects and 5,000 of
    another validation split.

    Source: Mao et al. 2016, arXiv 1511.02283; lmms-eval tasks/refcocog (bbox_rec, ACC@0.5).
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab-encoder/RefCOCOg"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "lmms-lab-encoder/RefCOCOg"
    split: ClassVar[str] = "test"
    count: ClassVar[int] = 5023
    splits: ClassVar[Mapping[str, int]] = {"val": 7573}
    each: ClassVar[str] = "answer"
    columns: ClassVar[Mapping[str, str]] = {"image": "image", "question": "ask", "boxes": "bbox"}
    box_space: ClassVar[str] = "pixel"
    box_format: ClassVar[str] = "xywh"
    cluster: ClassVar[str] = "file_name"
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="Bounding box coordinates are specified in the format (top-left x, top-left y, "
            "bottom-right x, bottom-right y). All values are floating point numbers bounded "
            "between 0 and 1. Please provide the bounding box coordinate of the region this "
            "sentence describes: {answer}",
            max_tokens=128,
            scorer="box_lmms",
        ),
        Official(
            "vlmevalkit@e8e78f0",
            ask="Please provide the bounding box coordinate of the region this sentence "
            "describes: <ref>{answer}</ref>",
            max_tokens=2048,
            scorer="box_vlmeval",
            unit="percent",
        ),
    )
    strict: ClassVar[Strict] = Strict("box_iou", {"threshold": 0.5, "binary": True})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add our question; the layout's own asks for a description of the object."""
        return {**row, "ask": f"Give the bounding box of: {row['answer']}"}
