"""TextVQA: questions about text in photos."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Textvqa(Benchmark):
    """TextVQA's validation split, ten annotators a question.

    lmms-eval capitalizes the question as Python does, which puts the rest of it into lower case; its
    limit of tokens is the adapter's, of which we take 128, the default of its chat adapters.

    Source: Singh et al. 2019, arXiv 1904.08920; lmms-eval tasks/textvqa, VLMEvalKit ImageVQADataset.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab-encoder/textvqa"
    licence: ClassVar[str] = "CC BY 4.0"
    hub: ClassVar[str] = "lmms-lab-encoder/textvqa"
    checked: ClassVar[str] = "columns: lmms-eval, 2026-11; count and licence: unchecked"
    split: ClassVar[str] = "validation"
    count: ClassVar[int] = 5000
    columns: ClassVar[Mapping[str, str]] = {
        "id": "question_id", "image": "image", "question": "question", "answer": "answers",
    }  # fmt: skip
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{capitalized}\nAnswer the question using a single word or phrase.",
            max_tokens=128,
            scorer="vqa_lmms",
            task="textvqa_val",
        ),
        Official(
            "vlmevalkit@e8e78f0",
            ask="{question}\nAnswer the question using a single word or phrase.",
            max_tokens=2048,
            scorer="vqa_vlmeval",
            unit="percent",
            task="ImageVQADataset TextVQA_VAL",
        ),
    )
    strict: ClassVar[Strict] = Strict("exact", {})
