"""WorldSense: questions that need what is seen and heard in a video."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.prompts import HUMAN_OMNI_LETTER, HUMAN_OMNI_SYSTEM


@dataclass(frozen=True)
class Worldsense(Benchmark):
    """WorldSense's test questions about videos with sound.

    By lmms-eval's rule an answer without any letter says A, and a letter inside a word is one.

    Source: Hong et al. 2025, arXiv 2502.04326; lmms-eval tasks/worldsense; HumanOmniV2
    eval/eval_humanomniv2.py.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab/worldsense"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "lmms-lab/worldsense"
    checked: ClassVar[str] = "count: hub card of honglyhly/WorldSense; columns: lmms-eval; 2026-11"
    count: ClassVar[int] = 3172
    columns: ClassVar[Mapping[str, str]] = {
        "id": "index",
        "video": "video_path",
        "question": "question",
        "options": "texts",
        "choice": "answer",
    }
    cluster: ClassVar[str] = "file"
    groups: ClassVar[tuple[str, ...]] = ("task_domain", "task_type")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="Carefully watch this video and pay attention to every detail. Based on your "
            "observations, select the best option that accurately addresses the question.\nThese "
            "are the frames of a video and the corresponding audio. Select the best answer to "
            "the following multiple-choice question based on the video. Respond with only the "
            "letter (A, B, C, or D) of the correct option.\n{question}\n{listed}\n",
            max_tokens=1024,
            scorer="letter_worldsense",
            unit="percent",
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
        """Add the options as lines, and without their letters."""
        texts, listed = (
            [str(option)[3:] for option in row["candidates"]],
            "\n".join(row["candidates"]),
        )
        return {**row, "file": row["video_path"], "texts": texts, "listed": listed}
