"""FGVC-Aircraft: which of 100 models an aircraft is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Aircraft100(Benchmark):
    """FGVC-Aircraft's test images as Visual-RFT evaluates its few-shot runs.

    Right is an answer in the name, or with the name in it, so that a single letter is right for most
    classes. Strict asks for the name.

    Source: Maji et al. 2013, arXiv 1306.5151; Visual-RFT, classification/Qwen2_VL_classification_infere.py.
    """

    origin: ClassVar[str] = "https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft"
    licence: ClassVar[str] = "non-commercial research"
    hub: ClassVar[str] = (
        "Liuziyu77/Visual-RFT (classification/val_data), images of the data set in fgvc_aircraft"
    )
    checked: ClassVar[str] = "count, classes, prompt and rule: Visual-RFT at 9486633, 2026-11"
    count: ClassVar[int] = 3333
    files: ClassVar[tuple[str, ...]] = ("fgvc_aircraft.pth",)
    layout = "classes"
    columns: ClassVar[Mapping[str, str]] = {"image": "file", "question": "ask", "answer": "name"}
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "visual_rft@9486633",
            ask="This is an image containing an aircraft. Please identify the model of the aircraft "
            "based on the image.\nOutput the thinking process in <think> </think> and final answer "
            "in <answer> </answer> tags.The output answer format should be as follows:\n<think> ... "
            "</think> <answer>species name</answer>\nPlease strictly follow the format.",
            max_tokens=1024,
            scorer="name_two_way",
        ),
    )
    strict: ClassVar[Strict] = Strict("class_name", {})
    asked: ClassVar[str] = "Which model is this aircraft?"

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add our question."""
        return {**row, "ask": self.asked}
