"""BLINK: 14 tasks of seeing, up to four images a question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Blink(Benchmark):
    """BLINK's validation split, all 14 tasks; the prompt holds the options.

    Source: Fu et al. 2024, arXiv 2404.12390; lmms-eval tasks/blink.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/BLINK-Benchmark/BLINK"
    licence: ClassVar[str] = "Apache-2.0"
    hub: ClassVar[str] = "BLINK-Benchmark/BLINK"
    checked: ClassVar[str] = "count: EvalScope 1.14.1's statistics, 2026-11; licence: unchecked"
    split: ClassVar[str] = "val"
    count: ClassVar[int] = 1901
    columns: ClassVar[Mapping[str, str]] = {
        "id": "idx",
        "image": "images",
        "question": "prompt",
        "options": "choices",
        "choice": "choice",
    }
    files: ClassVar[tuple[str, ...]] = (
        "Art_Style",
        "Counting",
        "Forensic_Detection",
        "Functional_Correspondence",
        "IQ_Test",
        "Jigsaw",
        "Multi-view_Reasoning",
        "Object_Localization",
        "Relative_Depth",
        "Relative_Reflectance",
        "Semantic_Correspondence",
        "Spatial_Relation",
        "Visual_Correspondence",
        "Visual_Similarity",
    )
    groups: ClassVar[tuple[str, ...]] = ("sub_task",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="Note: You only need to respond with {letters} without providing any "
            "additional information.\n{question}",
            max_tokens=1024,
            scorer="letter_blink",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Collect the images, and put the right letter into a column; the layout states it in brackets."""
        names = [f"image_{number}" for number in range(1, 5)]
        images = [row[name] for name in names if row.get(name) is not None]
        return {**row, "images": images, "choice": str(row["answer"]).strip("()")}
