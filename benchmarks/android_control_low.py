"""AndroidControl with the instruction of the single step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarks.android_control import AndroidControl


@dataclass(frozen=True)
class AndroidControlLow(AndroidControl):
    """AndroidControl's 7,708 test steps as OS-Atlas asks them (eval/data/ac_low_test.jsonl), low-level.

    Source: Li et al. 2024, arXiv 2406.03679; Wu et al. 2024, OS-Atlas, arXiv 2410.23218.
    """

    files: ClassVar[tuple[str, ...]] = ("ac_low_test.jsonl",)
