"""PhyX's testmini with options: physics in pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class PhyxMiniMc(Benchmark):
    """PhyX's 1,000 testmini questions with four options, which stand in the question.

    lmms-eval asks a judge where its rule reads no letter. VLMEvalKit's number is that of
    valid_type STR, which asks none. Neither states a limit of tokens that fits: here it is that of
    lmms-eval's models in vLLM, and VLMEvalKit's own.

    Source: Shen et al. 2025, arXiv 2505.15929; lmms-eval tasks/phyx; VLMEvalKit dataset/utils/phyx.py.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/Cloudriver/PhyX"
    licence: ClassVar[str] = "MIT"
    hub: ClassVar[str] = "Cloudriver/PhyX (config data_for_llms_eval)"
    checked: ClassVar[str] = "counts, files, columns and licence: hub card; 2026-11"
    split: ClassVar[str] = "phyx_mini_mc"
    count: ClassVar[int] = 1000
    files: ClassVar[tuple[str, ...]] = ("data_llms_eval/PhyX_mini_MC.parquet",)
    columns: ClassVar[Mapping[str, str]] = {
        "id": "index",
        "image": "image",
        "question": "question",
        "choice": "answer",
    }
    groups: ClassVar[tuple[str, ...]] = ("category",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}",
            max_tokens=4096,
            scorer="phyx_choice_judged",
            judge="deepseek-chat",
        ),
        Official(
            "vlmevalkit@e8e78f0",
            ask="{question}",
            max_tokens=2048,
            scorer="phyx_choice",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})
