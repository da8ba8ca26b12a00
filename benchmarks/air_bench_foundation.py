"""AIR-Bench, the foundation part: questions with up to four options about sounds, music and speech."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.rows import letter_of


@dataclass(frozen=True)
class AirBenchFoundation(Benchmark):
    """AIR-Bench's 19 foundation tasks: its splits `sound`, `music` and `speech`, a task of lmms-eval each.

    A judge rates the answers of its chat part, which is not here. The counts are those of AIR-Bench's
    own list of questions; whether lmms-eval's copy has all of them is not confirmed.

    Source: Yang et al. 2024, arXiv 2402.07729; lmms-eval tasks/air_bench (air_bench_foundation).
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab/AIR_Bench"
    licence: ClassVar[str] = "CC-BY-NC-4.0"
    hub: ClassVar[str] = "lmms-lab/AIR_Bench"
    checked: ClassVar[str] = (
        "count: evalscope 1.14.1, of qyang1021/AIR-Bench-Dataset; licence: hub card of the latter; "
        "columns: lmms-eval; 2026-11"
    )
    split: ClassVar[str] = "sound"
    count: ClassVar[int] = 5881
    splits: ClassVar[Mapping[str, int]] = {"music": 6313, "speech": 9232}
    files: ClassVar[tuple[str, ...]] = ("Foundation",)
    columns: ClassVar[Mapping[str, str]] = {
        "id": "uniq_id",
        "audio": "audio",
        "question": "question",
        "options": "texts",
        "choice": "letter",
    }
    groups: ClassVar[tuple[str, ...]] = ("task_name",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}\nA. {choice_a}\nB. {choice_b}\nC. {choice_c}\nD. {choice_d}\n\nAnswer "
            "with the option's letter from the given choices directly.",
            max_tokens=256,
            scorer="letter_air_bench",
            unread="expected",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the options and the right one's letter; the prompt prints a missing one as Python does."""
        columns = [f"choice_{letter}" for letter in "abcd"]
        listed = [row[column] for column in columns if row.get(column)]
        letter = letter_of({**row, "texts": listed}, "answer_gt", "texts")
        printed = {column: str(row.get(column)) for column in columns}
        return {**row, **printed, "texts": listed, "letter": letter}
