"""MMAU: questions about sounds, music and speech."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Mmau(Benchmark):
    """MMAU's test-mini, as lmms-eval, MMAU's own code, and R1-AQA evaluate it.

    The 9,000 answers of its test split are not public. In May 2025 a quarter of the questions was
    revised (MMAU-v05.15.25): numbers of the two versions are not comparable.

    Source: Sakshi et al. 2024, arXiv 2410.19168, evaluation.py; lmms-eval tasks/mmau; R1-AQA
    src/test_mmau.py.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab-audio/mmau"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "lmms-lab-audio/mmau"
    checked: ClassVar[str] = (
        "count: MMAU's README and evalscope 1.14.1; columns: lmms-eval; 2026-11"
    )
    split: ClassVar[str] = "test_mini"
    count: ClassVar[int] = 1000
    columns: ClassVar[Mapping[str, str]] = {
        "audio": "sound",
        "question": "question",
        "options": "texts",
        "choice": "letter",
    }
    groups: ClassVar[tuple[str, ...]] = ("task", "difficulty")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}\n{options}\nAnswer with the option's letter from the given choices "
            "directly.",
            max_tokens=128,
            scorer="letter_mmau",
            unread="expected",
            unit="percent",
        ),
        Official(
            "mmau@110127f",
            ask="{question}\n{options}",
            max_tokens=128,
            scorer="words_mmau",
            unit="percent",
        ),
        Official(
            "r1_aqa@5d24f31",
            ask="{question} Please choose the answer from the following options: {listed}. Output "
            "the final answer in <answer> </answer>.",
            max_tokens=256,
            scorer="words_r1_aqa",
            template="answer_only",
            whole=True,
            unit="percent",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the audio, the options, which some copies have as JSON, and the letter of the right one."""
        texts = json.loads(row["choices"]) if isinstance(row["choices"], str) else [*row["choices"]]
        same = [text.strip().lower() for text in texts]
        letter = "ABCDEFGHIJ"[same.index(str(row["answer"]).strip().lower())]
        sound = row["audio"] if row.get("audio") is not None else row["audio_id"]
        return {**row, "sound": sound, "texts": texts, "letter": letter, "listed": str(texts)}
