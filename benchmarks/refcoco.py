"""RefCOCO: a box around the object that an expression describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Refcoco(Benchmark):
    """RefCOCO's testA; the share of boxes with an IoU of at least 0.5, one row an expression.

    Other splits are testB, val and test. testA and testB are those of papers; `val` is not: it holds
    the 3,811 objects of the usual validation split and 5,000 of another one, as `test` does.

    Source: Kazemzadeh et al. 2014, ReferItGame; lmms-eval tasks/refcoco (bbox_rec, ACC@0.5).
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab-encoder/RefCOCO"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "lmms-lab-encoder/RefCOCO"
    checked: ClassVar[str] = (
        "counts: EvalScope 1.14.1's statistics; columns: the hub card of RefCOCOg, 2026-11; "
        "licence: unchecked"
    )
    split: ClassVar[str] = "testA"
    count: ClassVar[int] = 1975
    splits: ClassVar[Mapping[str, int]] = {"testB": 1810, "val": 8811, "test": 5000}
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
