"""MMBench-GUI's second level: click an element of a screenshot of one of six platforms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.rows import numbers_of


@dataclass(frozen=True)
class MmbenchGuiL2(Benchmark):
    """MMBench-GUI L2: the mean of the accuracies of basic and of advanced instructions.

    The published file has 3,594 rows, the paper 3,574. The rule is the harness's default parser; there
    it has to be named in the config (utils.misc.parser_response_into_coordinates), since the default
    itself takes no `meta` and fails on every answer.

    Source: Wang et al. 2025, arXiv 2507.19478; MMBench-GUI benchmarks/l2_element_grounding.py.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/OpenGVLab/MMBench-GUI"
    licence: ClassVar[str] = "Apache-2.0"
    hub: ClassVar[str] = "OpenGVLab/MMBench-GUI"
    checked: ClassVar[str] = (
        "columns: MMBench-GUI's guidance; licence and files: hub card; count and folder of the images: "
        "two public readers of the data; 2026-11"
    )
    count: ClassVar[int] = 3594
    files: ClassVar[tuple[str, ...]] = ("L2_annotations.json",)
    columns: ClassVar[Mapping[str, str]] = {
        "image": "file",
        "question": "instruction",
        "boxes": "corners",
        "width": "wide",
        "height": "high",
    }
    box_space: ClassVar[str] = "norm1"
    cluster: ClassVar[str] = "file_name"
    groups: ClassVar[tuple[str, ...]] = ("grounding_type", "platform", "data_type")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "mmbench_gui@896ddf1",
            system="You are a GUI agent. You are given a task and a screenshot of the screen. You "
            "need to finish this task following instructions from users.",
            ask="Output only the coordinate (x,y) of one point in your response. What element "
            "matches the following task: {question}",
            max_tokens=512,
            scorer="click_mmbench_gui",
            aggregate="mean_of_groups",
            by="grounding_type",
            unit="percent",
        ),
    )
    strict: ClassVar[Strict] = Strict(
        "point", {"binary": True}, aggregate="mean_of_groups", by="grounding_type"
    )

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the image's file, the box and the size."""
        wide, high = numbers_of(row, "image_size")
        name = f"{row['platform']}/{row['image_path']}"
        file = f"MMBench-GUI-OfflineImages/offline_images/{name}"
        more = {"file": file, "file_name": name, "corners": [numbers_of(row, "bbox")]}
        return {**row, **more, "wide": int(wide), "high": int(high)}
