"""VoiceBench's MMSU: questions of MMLU-Pro with four options that are all spoken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.prompts import SPOKEN
from vlmrl.benchmarking.rows import file_of


@dataclass(frozen=True)
class VoicebenchMmsu(Benchmark):
    """VoiceBench's spoken questions of twelve domains, each a task of lmms-eval; the options are spoken, too.

    It is another benchmark than `mmsu`.

    Source: Chen et al. 2024, arXiv 2410.17196; lmms-eval tasks/voicebench (voicebench_mmsu).
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab-audio/voicebench"
    licence: ClassVar[str] = "Apache-2.0"
    hub: ClassVar[str] = "lmms-lab-audio/voicebench"
    checked: ClassVar[str] = (
        "count: VoiceBench's README; licence: hub card of hlt-lab/voicebench, of which the data are a "
        "copy; columns: lmms-eval; 2026-11"
    )
    count: ClassVar[int] = 3074
    files: ClassVar[tuple[str, ...]] = ("mmsu/*.parquet",)
    columns: ClassVar[Mapping[str, str]] = {
        "audio": "audio",
        "question": "asked",
        "choice": "reference",
    }
    groups: ClassVar[tuple[str, ...]] = ("domain",)
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
        """Add the domain, which the file alone names, and the prompt: the question is spoken."""
        return {**row, "domain": file_of(row).stem.partition("-")[0], "asked": SPOKEN}
