"""EgoSchema: what a three-minute video from the wearer's view is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.data.multiple_choice import options_of


@dataclass(frozen=True)
class Egoschema(Benchmark):
    """EgoSchema's subset with published answers; those of all 5,031 questions are not public.

    Source: Mangalam et al. 2023, arXiv 2308.09126; lmms-eval tasks/egoschema (egoschema_subset).
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-eval/egoschema"
    licence: ClassVar[str] = "MIT; the videos: Ego4D's licence"
    hub: ClassVar[str] = "lmms-eval/egoschema"
    checked: ClassVar[str] = (
        "count, columns and licence: hub card of lmms-lab/egoschema; count: subset_answers.json at "
        "505c787; 2026-11"
    )
    count: ClassVar[int] = 500
    files: ClassVar[tuple[str, ...]] = ("Subset",)
    columns: ClassVar[Mapping[str, str]] = {
        "id": "question_idx",
        "video": "file",
        "question": "listed",
        "options": "texts",
        "choice": "letter",
    }
    cluster: ClassVar[str] = "video_idx"
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}\nAnswer with the option's letter from the given choices directly.",
            max_tokens=16,
            scorer="letter_egoschema",
            unread="expected",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the video's file, the options without letters and under the question, and the right letter."""
        options = [str(option) for option in row["option"]]
        return {
            **row,
            "file": f"videos/{row['video_idx']}.mp4",
            "listed": "\n".join([row["question"], *options]),
            "texts": list(options_of(options)),
            "letter": "ABCDE"[int(row["answer"])],
        }
