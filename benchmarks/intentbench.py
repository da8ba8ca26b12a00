"""IntentBench: what people in a video feel, mean and intend."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.prompts import HUMAN_OMNI_SYSTEM

CLOSINGS = {
    "multiple choice": " Please provide only the single option letter (e.g., A, B, C, D, etc.) within the "
    "<answer> </answer> tags.",
    "emer_ov_mc": " Please provide only the single or multiple option letter (e.g., A for single option or "
    "A,E for multi option, etc.) within the <answer> </answer> tags.",
    "judge": " Please answer Yes or No within the <answer> </answer> tags.",
}
"""What stands after the question, by its kind."""
JUDGES = {
    "emer_ov_mc": [{"verifier": "labels", "options": {"measure": "exact"}}],
    "judge": [{"verifier": "yes_no"}],
}
"""What judges strictly, by the kind of question, if not the one letter does."""


@dataclass(frozen=True)
class Intentbench(Benchmark):
    """IntentBench: one option, several options (F1), or yes and no, by the kind of question.

    HumanOmniV2 gives a completion without an answer tag the text of another; here it is its own text.

    Source: Yang et al. 2025, HumanOmniV2, arXiv 2506.21277, eval/eval_humanomniv2.py.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/PhilipC/IntentBench"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "PhilipC/IntentBench"
    checked: ClassVar[str] = "file: hub file list; columns: HumanOmniV2's code; 2026-11; count not"
    split: ClassVar[str] = "train"
    count: ClassVar[int] = 2689
    files: ClassVar[tuple[str, ...]] = ("qa.json",)
    columns: ClassVar[Mapping[str, str]] = {
        "video": "file",
        "question": "problem",
        "options": "texts",
        "choice": "letter",
        "labels": "letters",
        "answer": "text",
        "rewards": "judged_by",
    }
    cluster: ClassVar[str] = "name"
    groups: ClassVar[tuple[str, ...]] = ("problem_type",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "human_omni@9bf0e6f",
            ask="Here is a video, with the audio from the video.\n{question} "
            "Options:\n{listed}\n{closing}",
            ask_open="Here is a video, with the audio from the video.\n{question}{closing}",
            system=HUMAN_OMNI_SYSTEM,
            max_tokens=2048,
            scorer="human_omni",
            template="context_think_answer",
            whole=True,
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the video's file, the words after the question, and the truth by the kind of question."""
        kind, right = row["problem_type"], re.sub(r"</?answer>", "", row["solution"]).strip()
        options = [*(row.get("options") or ())] if kind != "judge" else []
        file = row.get("video") or row["path"]
        added: dict[str, Any] = {
            "name": file,
            "file": f"videos/{file}",
            "listed": "\n".join(options),
            "closing": CLOSINGS[kind],
        }
        added |= {"texts": [str(option).partition(".")[2].strip() for option in options] or None}
        added |= {"letter": right if kind == "multiple choice" else None}
        added |= {"letters": right.split(",") if kind == "emer_ov_mc" else None}
        added |= {"text": right if kind == "judge" else None}
        return {**row, **added, "judged_by": JUDGES.get(kind)}
