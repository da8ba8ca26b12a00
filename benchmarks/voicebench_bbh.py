"""VoiceBench's BBH: spoken puzzles that are answered with yes or no, or with one of two sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.prompts import SPOKEN


@dataclass(frozen=True)
class VoicebenchBbh(Benchmark):
    """VoiceBench's spoken tasks of BIG-Bench Hard: sports, hyperbaton, navigate and web of lies.

    The harness draws one of two answers where none of its phrases occurs.

    Source: Chen et al. 2024, arXiv 2410.17196; lmms-eval tasks/voicebench (voicebench_bbh).
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab-audio/voicebench"
    licence: ClassVar[str] = "Apache-2.0"
    hub: ClassVar[str] = "lmms-lab-audio/voicebench"
    checked: ClassVar[str] = (
        "count: ultravox's data sets; licence: hub card of hlt-lab/voicebench; columns: lmms-eval; 2026-11"
    )
    count: ClassVar[int] = 1000
    files: ClassVar[tuple[str, ...]] = ("bbh",)
    columns: ClassVar[Mapping[str, str]] = {
        "id": "id",
        "audio": "audio",
        "question": "asked",
        "answer": "word",
        "choice": "letter",
        "rewards": "judged_by",
    }
    groups: ClassVar[tuple[str, ...]] = ("task",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}",
            max_tokens=256,
            scorer="voicebench_bbh",
            unread="expected",
            unit="percent",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the task, the prompt, and the right word or letter; a word is judged as yes or no."""
        right, name = str(row["reference"]).strip("() "), str(row["id"])
        is_letter = right.upper() in ("A", "B")
        return {
            **row,
            "asked": SPOKEN,
            "task": next((task for task in _TASKS if task in name), ""),
            "word": None if is_letter else right.lower(),
            "letter": right.upper() if is_letter else None,
            "judged_by": None if is_letter else ["yes_no"],
        }


_TASKS = ("sports_understanding", "hyperbaton", "navigate", "web_of_lies")
