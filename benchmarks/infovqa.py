"""InfographicVQA: questions about infographics."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from vlmrl.benchmarking.base import Official
from vlmrl.benchmarks.docvqa import Docvqa


@dataclass(frozen=True)
class Infovqa(Docvqa):
    """InfographicVQA's validation split; published figures are mostly those of the hidden test split.

    Source: Mathew et al. 2022, arXiv 2104.12756; lmms-eval tasks/infovqa, VLMEvalKit ImageVQADataset.
    """

    hub: ClassVar[str] = "lmms-lab-encoder/DocVQA (config InfographicVQA)"
    count: ClassVar[int] = 2801
    files: ClassVar[tuple[str, ...]] = ("InfographicVQA",)
    cluster: ClassVar[str] = ""
    officials: ClassVar[tuple[Official, ...]] = (
        replace(Docvqa.officials[0], task="infovqa_val"),
        replace(Docvqa.officials[1], task="ImageVQADataset InfoVQA_VAL"),
    )
