"""DocVQA: questions about scanned documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Docvqa(Benchmark):
    """DocVQA's validation split; published figures are mostly those of the hidden test split.

    Source: Mathew et al. 2021, arXiv 2007.00398; lmms-eval tasks/docvqa, VLMEvalKit ImageVQADataset.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab-encoder/DocVQA"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "lmms-lab-encoder/DocVQA (config DocVQA)"
    checked: ClassVar[str] = "count: EvalScope 1.14.1's statistics, 2026-11; licence: unchecked"
    split: ClassVar[str] = "validation"
    count: ClassVar[int] = 5349
    files: ClassVar[tuple[str, ...]] = ("DocVQA",)
    columns: ClassVar[Mapping[str, str]] = {
        "id": "questionId", "image": "image", "question": "question", "answer": "answers",
    }  # fmt: skip
    cluster: ClassVar[str] = "docId"
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}\nAnswer the question using a single word or phrase.",
            max_tokens=32,
            scorer="anls",
            task="docvqa_val",
        ),
        Official(
            "vlmevalkit@e8e78f0",
            ask="{question}\nAnswer the question using a single word or phrase.",
            max_tokens=2048,
            scorer="anls",
            unit="percent",
            task="ImageVQADataset DocVQA_VAL",
        ),
    )
    strict: ClassVar[Strict] = Strict("ocr", {"measure": "anls", "cut": 0.6})
