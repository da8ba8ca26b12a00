"""Flowers102: which of 102 species a flower is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from vlmrl.benchmarking.base import Official
from vlmrl.benchmarks.aircraft100 import Aircraft100


@dataclass(frozen=True)
class Flowers102(Aircraft100):
    """Flowers102's 2,463 images as Visual-RFT evaluates its few-shot runs.

    Visual-RFT published its words for aircraft alone; here they name another thing. Strict asks for
    the name.

    Source: Nilsback and Zisserman 2008; Visual-RFT, classification/Qwen2_VL_classification_infere.py.
    """

    origin: ClassVar[str] = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = (
        "Liuziyu77/Visual-RFT (classification/val_data), images of the data set in oxford_flowers"
    )
    checked: ClassVar[str] = (
        "count, classes and rule: Visual-RFT at 9486633, 2026-11; its prompt for this set: unchecked"
    )
    count: ClassVar[int] = 2463
    files: ClassVar[tuple[str, ...]] = ("oxford_flowers.pth",)
    officials: ClassVar[tuple[Official, ...]] = (
        replace(
            Aircraft100.officials[0],
            ask="This is an image containing a flower. Please identify the species of the flower "
            "based on the image.\nOutput the thinking process in <think> </think> and final answer "
            "in <answer> </answer> tags.The output answer format should be as follows:\n<think> ... "
            "</think> <answer>species name</answer>\nPlease strictly follow the format.",
        ),
    )
    asked: ClassVar[str] = "Which species is this flower?"
