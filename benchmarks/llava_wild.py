"""LLaVA-Bench in the wild: conversations, descriptions and reasoning about 24 images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class LlavaWild(Benchmark):
    """LLaVA-Bench's 60 questions. A judge compares every answer with one that GPT-4 wrote.

    Without it only an answer that is GPT-4's to the letter is sure to be as good: the lower bound, and
    our number, are 0 for any other. It is here so that answers are generated and kept for a judge.

    Source: Liu et al. 2023, LLaVA, arXiv 2304.08485; lmms-eval tasks/llava-in-the-wild.
    """

    origin: ClassVar[str] = (
        "https://huggingface.co/datasets/lmms-lab-encoder/llava-bench-in-the-wild"
    )
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "lmms-lab-encoder/llava-bench-in-the-wild"
    checked: ClassVar[str] = "columns and prompt: lmms-eval, 2026-11; count and licence: unchecked"
    split: ClassVar[str] = "train"
    count: ClassVar[int] = 60
    columns: ClassVar[Mapping[str, str]] = {
        "id": "question_id", "image": "image", "question": "question", "answer": "gpt_answer",
    }  # fmt: skip
    cluster: ClassVar[str] = "caption"
    groups: ClassVar[tuple[str, ...]] = ("category",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}",
            max_tokens=4096,
            scorer="equal_text",
            unit="percent",
            judge="gpt-4-0613",
            points=True,
        ),
    )
    strict: ClassVar[Strict] = Strict("exact", {})
