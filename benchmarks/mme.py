"""MME: yes or no about perception and cognition, two questions an image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Mme(Benchmark):
    """MME's test split: a sum over 14 categories of accuracy and of images wholly right, 2,800 at most.

    lmms-eval prints perception and cognition apart: see the categories.

    Source: Fu et al. 2023, arXiv 2306.13394; lmms-eval tasks/mme, VLMEvalKit MME.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab-encoder/MME"
    licence: ClassVar[str] = "none stated on the data set's page"
    hub: ClassVar[str] = "lmms-lab-encoder/MME"
    checked: ClassVar[str] = (
        "count and columns: hub card of lmms-lab/MME, which states no licence; 2026-11"
    )
    count: ClassVar[int] = 2374
    columns: ClassVar[Mapping[str, str]] = {
        "image": "image", "question": "question", "answer": "answer",
    }  # fmt: skip
    cluster: ClassVar[str] = "question_id"
    groups: ClassVar[tuple[str, ...]] = ("category",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}\nAnswer the question using a single word or phrase.",
            max_tokens=16,
            without=" Please answer yes or no.",
            scorer="yes_no_prefix",
            aggregate="sum_of_pairs",
            by="pair",
            unit="sum",
            task="mme",
        ),
        Official(
            "vlmevalkit@e8e78f0",
            ask="{question}",
            max_tokens=2048,
            scorer="yes_no_words",
            aggregate="sum_of_pairs",
            by="pair",
            unit="sum",
            task="ImageYORNDataset MME",
        ),
    )
    strict: ClassVar[Strict] = Strict("yes_no", {}, aggregate="sum_of_pairs", by="pair")

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the pair of questions that a row belongs to."""
        return {**row, "pair": f"{row['category']}/{row['question_id']}"}
