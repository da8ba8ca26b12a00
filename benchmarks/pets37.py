"""Oxford-IIIT Pets: which of 37 breeds a cat or dog is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from vlmrl.benchmarking.base import Official
from vlmrl.benchmarks.aircraft100 import Aircraft100


@dataclass(frozen=True)
class Pets37(Aircraft100):
    """Oxford-IIIT Pets' 3,669 test images as Visual-RFT evaluates its few-shot runs.

    Visual-RFT published its words for aircraft alone; here they name another thing. Strict asks for
    the name.

    Source: Parkhi et al. 2012; Visual-RFT, classification/Qwen2_VL_classification_infere.py.
    """

    origin: ClassVar[str] = "https://www.robots.ox.ac.uk/~vgg/data/pets"
    licence: ClassVar[str] = "CC-BY-SA-4.0"
    hub: ClassVar[str] = (
        "Liuziyu77/Visual-RFT (classification/val_data), images of the data set in oxford_pets"
    )
    checked: ClassVar[str] = (
        "count, classes and rule: Visual-RFT at 9486633, 2026-11; its prompt for this set: unchecked"
    )
    count: ClassVar[int] = 3669
    files: ClassVar[tuple[str, ...]] = ("pets.pth",)
    officials: ClassVar[tuple[Official, ...]] = (
        replace(
            Aircraft100.officials[0],
            ask="This is an image containing a pet. Please identify the breed of the pet based on the "
            "image.\nOutput the thinking process in <think> </think> and final answer in <answer> "
            "</answer> tags.The output answer format should be as follows:\n<think> ... </think> "
            "<answer>species name</answer>\nPlease strictly follow the format.",
        ),
    )
    asked: ClassVar[str] = "Which breed is this pet?"
