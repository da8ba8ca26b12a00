"""VQAv2: questions about everyday photos, each with ten people's answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Vqav2(Benchmark):
    """VQAv2's validation split; the answers to test-dev and test are not published.

    lmms-eval's rule is that of TextVQA without its first step, so that `it's` stays one word.

    Source: Goyal et al. 2017, arXiv 1612.00837; lmms-eval tasks/vqav2.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab-encoder/VQAv2"
    licence: ClassVar[str] = "CC BY 4.0"
    hub: ClassVar[str] = "lmms-lab-encoder/VQAv2"
    checked: ClassVar[str] = (
        "count, columns and licence: the hub card of lmms-lab/VQAv2; count: EvalScope 1.14.1's "
        "statistics, 2026-11"
    )
    split: ClassVar[str] = "validation"
    count: ClassVar[int] = 214354
    columns: ClassVar[Mapping[str, str]] = {
        "id": "question_id",
        "image": "image",
        "question": "question",
        "answer": "accepted",
    }
    cluster: ClassVar[str] = "image_id"
    groups: ClassVar[tuple[str, ...]] = ("answer_type",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}\nAnswer the question using a single word or phrase.",
            max_tokens=16,
            scorer="vqa_plain_lmms",
            task="vqav2_val",
        ),
    )
    strict: ClassVar[Strict] = Strict("exact", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """List the texts of the ten answers."""
        return {**row, "accepted": [str(each["answer"]) for each in row["answers"]]}
