"""Stanford Cars: which of 196 models a car is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from vlmrl.benchmarking.base import Official
from vlmrl.benchmarks.aircraft100 import Aircraft100


@dataclass(frozen=True)
class Cars196(Aircraft100):
    """Stanford Cars' 8,041 test images as Visual-RFT evaluates its few-shot runs.

    Visual-RFT published its words for aircraft alone; here they name another thing. Strict asks for
    the name.

    Source: Krause et al. 2013; Visual-RFT, classification/Qwen2_VL_classification_infere.py.
    """

    origin: ClassVar[str] = "https://github.com/jhpohovey/StanfordCars-Dataset"
    licence: ClassVar[str] = "non-commercial research"
    hub: ClassVar[str] = (
        "Liuziyu77/Visual-RFT (classification/val_data), images of the data set in stanford_cars"
    )
    checked: ClassVar[str] = (
        "count, classes and rule: Visual-RFT at 9486633, 2026-11; its prompt for this set: unchecked"
    )
    count: ClassVar[int] = 8041
    files: ClassVar[tuple[str, ...]] = ("stanford_cars.pth",)
    officials: ClassVar[tuple[Official, ...]] = (
        replace(
            Aircraft100.officials[0],
            ask="This is an image containing a car. Please identify the model of the car based on the "
            "image.\nOutput the thinking process in <think> </think> and final answer in <answer> "
            "</answer> tags.The output answer format should be as follows:\n<think> ... </think> "
            "<answer>species name</answer>\nPlease strictly follow the format.",
        ),
    )
    asked: ClassVar[str] = "Which model is this car, with its year?"
