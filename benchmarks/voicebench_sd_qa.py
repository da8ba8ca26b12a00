"""VoiceBench's SD-QA: spoken questions of people with eleven accents of English."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.prompts import SPOKEN

_ACCENTS = ("aus", "gbr", "ind_n", "ind_s", "irl", "kenya", "nga", "nzl", "phl", "zaf")


@dataclass(frozen=True)
class VoicebenchSdQa(Benchmark):
    """VoiceBench's questions of SD-QA, a split and a task of lmms-eval for each accent.

    The number is that of the harness's judge; the other one, of a trained classifier (PEDANT), is not here.
    Our judge is told the right answer, and not what the question was.

    Source: Chen et al. 2024, arXiv 2410.17196; lmms-eval tasks/voicebench (voicebench_sd-qa_usa).
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab-audio/voicebench"
    licence: ClassVar[str] = "Apache-2.0"
    hub: ClassVar[str] = "lmms-lab-audio/voicebench"
    checked: ClassVar[str] = (
        "count: VoiceBench's README and ultravox's data sets; licence: hub card of hlt-lab/voicebench, of "
        "which the data are a copy; columns: lmms-eval; 2026-11"
    )
    split: ClassVar[str] = "usa"
    count: ClassVar[int] = 553
    splits: ClassVar[Mapping[str, int]] = dict.fromkeys(_ACCENTS, 553)
    files: ClassVar[tuple[str, ...]] = ("sd-qa",)
    columns: ClassVar[Mapping[str, str]] = {
        "audio": "audio",
        "question": "asked",
        "answer": "reference",
    }
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}",
            max_tokens=256,
            scorer="equal_text",
            judge="gpt-4o-mini",
        ),
    )
    strict: ClassVar[Strict] = Strict("exact", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the prompt, which is not the question: that is spoken."""
        return {**row, "asked": SPOKEN}
