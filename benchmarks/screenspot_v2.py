"""ScreenSpot-v2: ScreenSpot with corrected labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class ScreenspotV2(Benchmark):
    """ScreenSpot-v2's 1,272 instructions; boxes as lmms-eval's loader publishes them, 0 to 1.

    Source: Wu et al. 2024, OS-Atlas, arXiv 2410.23218; lmms-eval tasks/screenspot_v2.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/HongxinLi/ScreenSpot_v2"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "HongxinLi/ScreenSpot_v2"
    checked: ClassVar[str] = "columns: lmms-eval, 2026-11; count and licence: unchecked"
    split: ClassVar[str] = "test"
    count: ClassVar[int] = 1272
    columns: ClassVar[Mapping[str, str]] = {
        "image": "image",
        "question": "instruction",
        "boxes": "bbox",
    }
    box_space: ClassVar[str] = "norm1"
    cluster: ClassVar[str] = "file_name"
    groups: ClassVar[tuple[str, ...]] = ("data_type",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="Identify the UI element for the instruction and output exactly one "
            "click point as [x, y] in normalized coordinates within [0, 1]. Do not "
            "output a bounding box.\nInstruction: {question}",
            max_tokens=128,
            scorer="click_screen",
        ),
    )
    strict: ClassVar[Strict] = Strict("point", {"binary": True})
