"""PhyX's test split without options: physics in pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarks.phyx_mini_oe import PhyxMiniOe


@dataclass(frozen=True)
class PhyxOe(PhyxMiniOe):
    """PhyX's 3,000 questions with an open answer, of which testmini has 1,000.

    Source: as of `phyx_mini_oe`.
    """

    split: ClassVar[str] = "phyx_oe"
    count: ClassVar[int] = 3000
    files: ClassVar[tuple[str, ...]] = ("data_llms_eval/PhyX_OE.parquet",)
