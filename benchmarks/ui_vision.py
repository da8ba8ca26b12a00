"""UI-Vision's element grounding: click an element of one of 83 desktop programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.rows import file_of, numbers_of


@dataclass(frozen=True)
class UiVision(Benchmark):
    """UI-Vision's 5,479 elements by name, by function or by their place.

    The official score is the mean of the three accuracies. The harness has a prompt and a parser for
    each model; here are those of Qwen2.5-VL, which answers with a box in thousandths.

    Source: Nayak et al. 2025, arXiv 2503.15661; UI-Vision eval/grounding.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/ServiceNow/ui-vision"
    licence: ClassVar[str] = "MIT"
    hub: ClassVar[str] = "ServiceNow/ui-vision"
    checked: ClassVar[str] = (
        "files and licence: hub card; columns: UI-Vision's code; count and folder of the images: "
        "public readers of the data; 2026-11"
    )
    count: ClassVar[int] = 5479
    files: ClassVar[tuple[str, ...]] = (
        "annotations/element_grounding/element_grounding_basic.json",
        "annotations/element_grounding/element_grounding_functional.json",
        "annotations/element_grounding/element_grounding_spatial.json",
    )
    columns: ClassVar[Mapping[str, str]] = {
        "image": "file",
        "question": "prompt_to_evaluate",
        "boxes": "corners",
        "width": "wide",
        "height": "high",
    }
    box_space: ClassVar[str] = "pixel"
    cluster: ClassVar[str] = "image_path"
    groups: ClassVar[tuple[str, ...]] = ("setting",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "ui_vision@2b79355",
            ask="Output the bounding box in the image of the UI element corresponding to the "
            'instruction "{question}" with grounding. The coordinates should be relative ranging '
            "from 0 to 1000, relative to the actually image length and width (i.e. all values (x "
            "and y) in a range [0, 1000]).",
            max_tokens=256,
            scorer="click_ui_vision",
            aggregate="mean_of_groups",
            by="setting",
        ),
    )
    strict: ClassVar[Strict] = Strict(
        "point", {"binary": True}, aggregate="mean_of_groups", by="setting"
    )

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the image's file, the box with its corners in order, the size, and the kind of request."""
        a, b, c, d = numbers_of(row, "bbox")
        corners = [[min(a, c), min(b, d), max(a, c), max(b, d)]]
        wide, high = numbers_of(row, "image_size")
        setting = file_of(row).stem.rpartition("_")[2]
        more = {"file": f"images/{row['image_path']}", "corners": corners, "setting": setting}
        return {**row, **more, "wide": int(wide), "high": int(high)}
