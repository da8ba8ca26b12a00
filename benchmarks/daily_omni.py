"""Daily-Omni: questions about everyday videos that join what is seen and heard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.prompts import HUMAN_OMNI_LETTER, HUMAN_OMNI_SYSTEM


@dataclass(frozen=True)
class DailyOmni(Benchmark):
    """Daily-Omni's questions about videos of 30 and 60 seconds.

    The rule is that of its script for Qwen2.5-Omni, the letter as a whole; its other scripts read more.

    Source: Zhou et al. 2025, arXiv 2505.17862, test_model/Qwen2.5-Omni; HumanOmniV2
    eval/eval_humanomniv2.py.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/liarliar/Daily-Omni"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "liarliar/Daily-Omni"
    checked: ClassVar[str] = "count and columns: counted in qa.json at fccb838; 2026-11"
    split: ClassVar[str] = "train"
    count: ClassVar[int] = 1197
    files: ClassVar[tuple[str, ...]] = ("qa.json",)
    columns: ClassVar[Mapping[str, str]] = {
        "video": "file",
        "question": "Question",
        "options": "texts",
        "choice": "Answer",
    }
    cluster: ClassVar[str] = "video_id"
    groups: ClassVar[tuple[str, ...]] = ("Type", "video_duration")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "daily_omni@fccb838",
            ask="\nYour task is to accurately answer multiple-choice questions based on the given "
            "video.\nSelect the single most accurate answer from the given choices.\nQuestion: "
            "{question}\nChoices: {choices}\nYour answer should be a capital letter representing "
            "your choice: A, B, C, or D. Don't generate any other text.\n",
            max_tokens=128,
            scorer="letter_daily_omni",
        ),
        Official(
            "human_omni@9bf0e6f",
            ask=HUMAN_OMNI_LETTER,
            system=HUMAN_OMNI_SYSTEM,
            max_tokens=2048,
            scorer="human_omni",
            template="context_think_answer",
            whole=True,
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the video's file, and the options as Python's list, as lines, and without their letters."""
        listed, name = "\n".join(row["Choice"]), row["video_id"]
        texts = [str(option).partition(". ")[2] for option in row["Choice"]]
        added = {"file": f"Videos/{name}/{name}_video.mp4", "texts": texts, "listed": listed}
        return {**row, **added, "choices": str([*row["Choice"]])}
