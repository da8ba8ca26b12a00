"""BLINK as VLMEvalKit's table has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarks.mmstar_tsv import MmstarTsv


@dataclass(frozen=True)
class BlinkTsv(MmstarTsv):
    """BLINK's 1,901 questions by VLMEvalKit's table and prompt, all images first.

    The benchmark `blink` reads the data as published first, and asks by its own prompts.

    Source: Fu et al. 2024, arXiv 2404.12390; VLMEvalKit BLINK (dataset/image_mcq.py).
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/BLINK-Benchmark/BLINK"
    licence: ClassVar[str] = "Apache-2.0"
    hub: ClassVar[str] = "https://opencompass.openxlab.space/utils/VLMEval/BLINK.tsv"
    checked: ClassVar[str] = (
        "columns: VLMEvalKit's code; count: OpenCompass's page of the table; licence: unchecked; 2026-11"
    )
    count: ClassVar[int] = 1901
    files: ClassVar[tuple[str, ...]] = ("BLINK.tsv",)
