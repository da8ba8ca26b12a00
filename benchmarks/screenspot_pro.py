"""ScreenSpot-Pro: click small targets in screenshots of professional programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.rows import numbers_of


@dataclass(frozen=True)
class ScreenspotPro(Benchmark):
    """ScreenSpot-Pro's 1,581 instructions: the point that is given lies in the box.

    VLMEvalKit prints the accuracy of texts, of icons and of a category from lists in which every
    group of n rows stands n times, so that a group weighs n squared: `mean_by_squares` is that
    number, as it comes out of one table with all categories. Its overall accuracy is the plain mean.

    Source: Li et al. 2025, arXiv 2504.07981; lmms-eval tasks/screenspot_pro, VLMEvalKit
    dataset/GUI/screenspot_pro.py.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/likaixin/ScreenSpot-Pro"
    licence: ClassVar[str] = "MIT"
    hub: ClassVar[str] = "TIGER-Lab/ScreenSpot-Pro"
    checked: ClassVar[str] = (
        "count: arXiv 2504.07981; columns: lmms-eval and the viewer's rows of lmms-lab/ScreenSpot-Pro, "
        "2026-11"
    )
    count: ClassVar[int] = 1581
    columns: ClassVar[Mapping[str, str]] = {
        "id": "id", "image": "image", "question": "instruction", "boxes": "corners",
        "width": "wide", "height": "high",
    }  # fmt: skip
    box_space: ClassVar[str] = "pixel"
    cluster: ClassVar[str] = "img_filename"
    groups: ClassVar[tuple[str, ...]] = ("group", "ui_type")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="Identify the UI element for the instruction and output exactly one "
            "click point as [x, y] in normalized coordinates within [0, 1]. Do not "
            "output a bounding box.\nInstruction: {question}",
            max_tokens=128,
            scorer="click_screen_sized",
        ),
        Official(
            "vlmevalkit@e8e78f0",
            system="You are a GUI agent. You are given a task and a screenshot of the screen. You "
            "need to perform pyautogui click/moveTo action to complete the task. The answer format "
            "is `pyautogui.click(x=?, y=?), x and y is necessary`",
            ask="Please complete the following tasks by clicking using `pyautogui.click`:\n{question}",
            max_tokens=2048,
            scorer="click_pyautogui",
            unit="percent",
            also=("mean_by_squares by texts", "mean_by_squares by icons"),
            task="ScreenSpot_Pro ScreenSpot_Pro",
        ),
    )
    strict: ClassVar[Strict] = Strict("point", {"binary": True})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the box, the size, and the groups that VLMEvalKit weighs by their squares."""
        wide, high = numbers_of(row, "img_size")
        kind, group = str(row["ui_type"]).lower(), str(row["group"])
        more = {"corners": [numbers_of(row, "bbox")], "wide": int(wide), "high": int(high)}
        more |= {"texts": group if kind == "text" else "", "icons": group if kind == "icon" else ""}
        return {**row, **more}
