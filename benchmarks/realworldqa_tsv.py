"""RealWorldQA as VLMEvalKit's table has it: every question with options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarks.mmstar_tsv import MmstarTsv


@dataclass(frozen=True)
class RealworldqaTsv(MmstarTsv):
    """RealWorldQA's 765 questions by VLMEvalKit's table and prompt.

    The benchmark `realworldqa` reads the data as published first, where some answers are words.

    Source: xAI 2024; VLMEvalKit RealWorldQA (dataset/image_mcq.py).
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab-encoder/RealWorldQA"
    licence: ClassVar[str] = "CC BY-ND 4.0"
    hub: ClassVar[str] = "https://opencompass.openxlab.space/utils/VLMEval/RealWorldQA.tsv"
    checked: ClassVar[str] = (
        "columns: VLMEvalKit's code and a public reader of the table; count: that of RealWorldQA; "
        "licence: unchecked; 2026-11"
    )
    split: ClassVar[str] = "test"
    count: ClassVar[int] = 765
    files: ClassVar[tuple[str, ...]] = ("RealWorldQA.tsv",)
