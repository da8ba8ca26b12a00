"""GQA: compositional questions about photos, made from their scene graphs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Gqa(Benchmark):
    """GQA's balanced test-dev questions, about 398 images that lie in a folder of their own.

    Source: Hudson and Manning 2019, arXiv 1902.09506; lmms-eval tasks/gqa, VLMEvalKit ImageVQADataset.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab-encoder/GQA"
    licence: ClassVar[str] = "MIT, as the hub card says; see also the data set's page"
    hub: ClassVar[str] = "lmms-lab-encoder/GQA (config testdev_balanced_instructions)"
    checked: ClassVar[str] = (
        "files and licence: hub file list of lmms-lab/GQA; count: the card of a copy; columns: "
        "lmms-eval, 2026-11"
    )
    split: ClassVar[str] = "testdev"
    count: ClassVar[int] = 12578
    files: ClassVar[tuple[str, ...]] = ("testdev_balanced_instructions",)
    beside: ClassVar[tuple[str, ...]] = ("testdev_balanced_images", "imageId", "id")
    columns: ClassVar[Mapping[str, str]] = {
        "id": "id",
        "image": "image",
        "question": "question",
        "answer": "answer",
    }
    cluster: ClassVar[str] = "imageId"
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}\nAnswer the question using a single word or phrase.",
            max_tokens=16,
            scorer="equal_lmms",
            task="gqa",
        ),
        Official(
            "vlmevalkit@e8e78f0",
            ask="{question}\nAnswer the question using a single word or phrase.",
            max_tokens=2048,
            scorer="equal_vlmeval",
            unit="percent",
            task="ImageVQADataset GQA_TestDev_Balanced",
        ),
    )
    strict: ClassVar[Strict] = Strict("exact", {})
