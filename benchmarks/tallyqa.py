"""TallyQA: simple and complex questions of how many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Tallyqa(Benchmark):
    """TallyQA's test split: 22,991 simple and 15,598 complex questions; papers quote both.

    VLMEvalKit takes the first number from 0 to 20, and prints one accuracy. Its own table of rows is
    another cut of the data. Images are those of Visual Genome, in VG_100K and VG_100K_2.

    Source: Acharya et al. 2019, arXiv 1810.12440; VLMEvalKit TallyQA.
    """

    origin: ClassVar[str] = "https://github.com/manoja328/TallyQA_dataset"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "manoja328/TallyQA_dataset (tallyqa.zip: test.json)"
    checked: ClassVar[str] = "prompt and rule: VLMEvalKit, 2026-11; counts and columns: unchecked"
    count: ClassVar[int] = 38589
    files: ClassVar[tuple[str, ...]] = ("test.json",)
    columns: ClassVar[Mapping[str, str]] = {
        "id": "question_id", "image": "image", "question": "question", "number": "answer",
    }  # fmt: skip
    cluster: ClassVar[str] = "image_id"
    groups: ClassVar[tuple[str, ...]] = ("issimple",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "vlmevalkit@e8e78f0",
            ask="{question}\nAnswer the question using a single number.",
            max_tokens=2048,
            scorer="count_to_twenty",
            task="TallyQA TallyQA",
        ),
    )
    strict: ClassVar[Strict] = Strict("count", {})
