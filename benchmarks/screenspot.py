"""ScreenSpot: click what an instruction names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Screenspot(Benchmark):
    """ScreenSpot's 1,272 instructions; the centre of the box that is given lies in the true one.

    Source: Cheng et al. 2024, SeeClick, arXiv 2401.10935; lmms-eval tasks/screenspot (rec, Center_ACC).
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/rootsautomation/ScreenSpot"
    licence: ClassVar[str] = "Apache-2.0"
    hub: ClassVar[str] = "rootsautomation/ScreenSpot"
    checked: ClassVar[str] = "count, columns and licence: hub card, 2026-11"
    split: ClassVar[str] = "test"
    count: ClassVar[int] = 1272
    columns: ClassVar[Mapping[str, str]] = {
        "image": "image",
        "question": "instruction",
        "boxes": "bbox",
    }
    box_space: ClassVar[str] = "norm1"
    cluster: ClassVar[str] = "file_name"
    groups: ClassVar[tuple[str, ...]] = ("data_type", "data_source")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="Bounding box coordinates are specified in the format (top-left x, "
            "top-left y, bottom-right x, bottom-right y). All values are floating "
            "point numbers bounded between 0 and 1 with two decimal places of "
            "precision (e.g., 0.15). Please provide the bounding box coordinates "
            "of the region that corresponds to the command: {question}",
            max_tokens=128,
            scorer="click_lmms",
        ),
    )
    strict: ClassVar[Strict] = Strict("point", {"binary": True})
