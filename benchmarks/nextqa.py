"""NExT-QA: why and how something happens in a video, and what comes before and after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Nextqa(Benchmark):
    """NExT-QA's test questions with five options; the open-ended ones, scored by WUPS, are left out.

    lmms-eval asks for no form of answer and states no limit of tokens: the model's own counts there, 1024
    is that of its vLLM.

    Source: Xiao et al. 2021, arXiv 2105.08276; lmms-eval tasks/nextqa (nextqa_mc_test).
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-eval/NExTQA"
    licence: ClassVar[str] = "annotations: MIT; videos: YFCC100M's licences"
    hub: ClassVar[str] = "lmms-eval/NExTQA"
    checked: ClassVar[str] = (
        "count, columns and licence: doc-doc/NExT-QA at 6b92588 (test.csv); count: hub viewer; 2026-11; "
        "names of the files not"
    )
    count: ClassVar[int] = 8564
    files: ClassVar[tuple[str, ...]] = ("MC",)
    columns: ClassVar[Mapping[str, str]] = {
        "id": "name",
        "video": "file",
        "question": "listed",
        "options": "texts",
        "choice": "letter",
    }
    cluster: ClassVar[str] = "film"
    groups: ClassVar[tuple[str, ...]] = ("type",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}",
            max_tokens=1024,
            scorer="letter_mmmu",
            unread="expected",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the video's file, the options as a list and under the question, and the right letter."""
        texts = [str(row[f"a{number}"]).strip() for number in range(5)]
        lines = [f"{letter}. {text}" for letter, text in zip("ABCDE", texts, strict=True)]
        return {
            **row,
            "name": f"{row['video']}-{row['qid']}",
            "film": str(row["video"]),
            "file": f"NExTVideo/{row['video']}.mp4",
            "listed": "\n".join([row["question"].strip(), *lines]),
            "texts": texts,
            "letter": "ABCDE"[int(row["answer"])],
        }
