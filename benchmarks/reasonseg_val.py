"""ReasonSeg's validation split: a box around what a sentence implies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarks.reasonseg import Reasonseg


@dataclass(frozen=True)
class ReasonsegVal(Reasonseg):
    """ReasonSeg's 200 validation rows, the box of all that the sentence means; the mean IoU.

    Source: Lai et al. 2023, LISA, arXiv 2308.00692; data as in Seg-Zero.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/Ricky06662/ReasonSeg_val"
    hub: ClassVar[str] = "Ricky06662/ReasonSeg_val"
    count: ClassVar[int] = 200
