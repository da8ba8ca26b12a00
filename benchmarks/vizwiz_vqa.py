"""VizWiz-VQA: what blind people asked about their own photos, many of which do not tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class VizwizVqa(Benchmark):
    """VizWiz-VQA's validation split; the answers to its test split are not published.

    lmms-eval capitalizes the question as Python does, which puts the rest of it into lower case; its
    limit of tokens is the adapter's, of which we take 128, the default of its chat adapters.
    VLMEvalKit's rule is that of TextVQA, but the questions of its own table were not compared.

    Source: Gurari et al. 2018, arXiv 1802.08218; lmms-eval tasks/vizwiz_vqa.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab-encoder/VizWiz-VQA"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "lmms-lab-encoder/VizWiz-VQA"
    checked: ClassVar[str] = (
        "count and columns: the hub card of lmms-lab/VizWiz-VQA, 2026-11; licence: unchecked"
    )
    split: ClassVar[str] = "val"
    count: ClassVar[int] = 4319
    columns: ClassVar[Mapping[str, str]] = {
        "id": "question_id",
        "image": "image",
        "question": "question",
        "answer": "answers",
    }
    groups: ClassVar[tuple[str, ...]] = ("category",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{capitalized}\nWhen the provided information is insufficient, respond with "
            "'Unanswerable'.\nAnswer the question using a single word or phrase.",
            max_tokens=128,
            scorer="vqa_lmms",
            task="vizwiz_vqa_val",
        ),
    )
    strict: ClassVar[Strict] = Strict("exact", {})
