"""PhyX's testmini without options: physics in pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class PhyxMiniOe(Benchmark):
    """PhyX's 1,000 testmini questions with an open answer, a value with its unit or a few words.

    lmms-eval asks a judge about every answer that is not the truth to the letter. VLMEvalKit's number is
    that of valid_type STR, where an answer that holds the truth is right: 5 is in 15. The limits of
    tokens are those of `phyx_mini_mc`.

    Source: Shen et al. 2025, arXiv 2505.15929; lmms-eval tasks/phyx; VLMEvalKit dataset/utils/phyx.py.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/Cloudriver/PhyX"
    licence: ClassVar[str] = "MIT"
    hub: ClassVar[str] = "Cloudriver/PhyX (config data_for_llms_eval)"
    checked: ClassVar[str] = "counts, files, columns and licence: hub card; 2026-11"
    split: ClassVar[str] = "phyx_mini_oe"
    count: ClassVar[int] = 1000
    files: ClassVar[tuple[str, ...]] = ("data_llms_eval/PhyX_mini_OE.parquet",)
    columns: ClassVar[Mapping[str, str]] = {
        "id": "index",
        "image": "image",
        "question": "question",
        "answer": "answer",
        "rewards": "judged_by",
    }
    groups: ClassVar[tuple[str, ...]] = ("category",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}",
            max_tokens=4096,
            scorer="phyx_open_judged",
            judge="deepseek-chat",
        ),
        Official(
            "vlmevalkit@e8e78f0",
            ask="{question}",
            max_tokens=2048,
            scorer="phyx_open",
        ),
    )
    strict: ClassVar[Strict] = Strict("math", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Have an answer in words, without any digit, judged as a text."""
        answer = str(row["answer"])
        in_words = not any(map(str.isdigit, answer))
        return {**row, "answer": answer, "judged_by": ["exact"] if in_words else None}
