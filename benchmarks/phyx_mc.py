"""PhyX's test split with options: physics in pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarks.phyx_mini_mc import PhyxMiniMc


@dataclass(frozen=True)
class PhyxMc(PhyxMiniMc):
    """PhyX's 3,000 questions with four options, of which testmini has 1,000.

    Source: as of `phyx_mini_mc`.
    """

    split: ClassVar[str] = "phyx_mc"
    count: ClassVar[int] = 3000
    files: ClassVar[tuple[str, ...]] = ("data_llms_eval/PhyX_MC.parquet",)
