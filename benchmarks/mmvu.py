"""MMVU: expert questions about lecture and laboratory videos."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Mmvu(Benchmark):
    """MMVU's validation split: 27 subjects, with options and without.

    An open answer that lmms-eval's rule calls wrong goes to a judge there. By its rule an empty open
    answer is right.

    Source: Zhao et al. 2025, arXiv 2501.12380; lmms-eval tasks/mmvu.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-eval/MMVU"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "lmms-eval/MMVU"
    checked: ClassVar[str] = (
        "count and file: hub file list of yale-nlp/MMVU; columns: lmms-eval; 2026-11"
    )
    split: ClassVar[str] = "validation"
    count: ClassVar[int] = 1000
    columns: ClassVar[Mapping[str, str]] = {
        "id": "id",
        "video": "file",
        "question": "question",
        "options": "texts",
        "choice": "letter",
        "answer": "text",
        "rewards": "judged_by",
    }
    cluster: ClassVar[str] = "video_path"
    groups: ClassVar[tuple[str, ...]] = ("question_type", "subject")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="\nQuestion:{question}\n{listed}\nVisual Information: processed video\nDo not "
            "generate any intermediate reasoning process. Answer directly with the option letter "
            "from the\ngiven choices.\n",
            ask_open="\nQuestion:{question}\nVisual Information: processed video\nDo not generate any "
            "intermediate reasoning process. Directly output the final answer.\n",
            max_tokens=1024,
            scorer="mmvu",
            unit="percent",
            judge="gpt-4o-2024-11-20",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the video's file, the options by letter, and by what an open answer is judged."""
        choices = row["choices"] if row["question_type"] == "multiple-choice" else None
        return {
            **row,
            "subject": str(row["video_path"]).split("/")[-2],
            "file": row["video_path"],
            "texts": [*choices.values()] if choices else None,
            "letter": row["answer"] if choices else None,
            "text": None if choices else row["answer"],
            "listed": "\n".join(f"{letter}: {text}" for letter, text in (choices or {}).items()),
            "judged_by": None if choices else "exact",
        }
