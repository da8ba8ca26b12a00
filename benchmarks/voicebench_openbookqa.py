"""VoiceBench's OpenBookQA: questions with four options that are all spoken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.prompts import SPOKEN


@dataclass(frozen=True)
class VoicebenchOpenbookqa(Benchmark):
    """VoiceBench's spoken questions of OpenBookQA; the options are spoken, too, and not written.

    Source: Chen et al. 2024, arXiv 2410.17196; lmms-eval tasks/voicebench (voicebench_openbookqa).
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab-audio/voicebench"
    licence: ClassVar[str] = "Apache-2.0"
    hub: ClassVar[str] = "lmms-lab-audio/voicebench"
    checked: ClassVar[str] = (
        "count: VoiceBench's README; licence: hub card of hlt-lab/voicebench, of which the data are a "
        "copy; columns: lmms-eval; 2026-11"
    )
    count: ClassVar[int] = 455
    files: ClassVar[tuple[str, ...]] = ("openbookqa",)
    columns: ClassVar[Mapping[str, str]] = {
        "audio": "audio",
        "question": "asked",
        "choice": "reference",
    }
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}",
            max_tokens=256,
            scorer="voicebench_letter",
            unit="percent",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the prompt, which is not the question: that is spoken."""
        return {**row, "asked": SPOKEN}
