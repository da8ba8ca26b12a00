"""CV-Bench: spatial relations, counts, depth and distance as multiple choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class CvBench(Benchmark):
    """CV-Bench's test split, 2D and 3D. `vlmevalkit` is not offered: it reports two numbers.

    The paper's own number is a mean of means over sources; lmms-eval's `cv_bench` is over all questions.

    Source: Tong et al. 2024, Cambrian-1, arXiv 2406.16860; lmms-eval tasks/cv_bench.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/nyu-visionx/CV-Bench"
    licence: ClassVar[str] = "Apache-2.0"
    hub: ClassVar[str] = "nyu-visionx/CV-Bench"
    checked: ClassVar[str] = (
        "columns: lmms-eval; licence: hub card; count: hub viewer (rounded: 2.64k); 2026-11"
    )
    count: ClassVar[int] = 2638
    files: ClassVar[tuple[str, ...]] = ("test_2d.parquet", "test_3d.parquet", "test.parquet")
    columns: ClassVar[Mapping[str, str]] = {
        "id": "idx", "image": "image", "question": "prompt", "options": "choices", "choice": "choice",
    }  # fmt: skip
    groups: ClassVar[tuple[str, ...]] = ("type", "task", "source")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="Note: You only need to respond with {letters} without providing any "
            "additional information.\n\n{question}",
            max_tokens=1024,
            scorer="letter_cv_bench",
            task="cv_bench",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Put the right letter into a column; the layout states it in brackets."""
        return {**row, "choice": str(row["answer"]).strip("()")}
