"""InfographicVQA: questions about infographics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Infovqa(Benchmark):
    """InfographicVQA's validation split; published figures are mostly those of the hidden test split.

    Source: Mathew et al. 2022, arXiv 2104.12756; lmms-eval tasks/infovqa, VLMEvalKit ImageVQADataset.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab-encoder/DocVQA"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "lmms-lab-encoder/DocVQA (config InfographicVQA)"
    split: ClassVar[str] = "validation"
    count: ClassVar[int] = 2801
    columns: ClassVar[Mapping[str, str]] = {
        "id": "questionId", "image": "image", "question": "question", "answer": "answers",
    }  # fmt: skip
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}\nAnswer the question using a single word or phrase.",
            max_tokens=32,
            scorer="anls",
            task="infovqa_val",
        ),
        Official(
            "vlmevalkit@e8e78f0",
            ask="{question}\nAnswer the question using a single word or phrase.",
            max_tokens=2048,
            scorer="anls",
            unit="percent",
        ),
    )
    strict: ClassVar[Strict] = Strict("ocr", {})
