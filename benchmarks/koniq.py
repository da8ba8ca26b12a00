"""KonIQ-10k: rate the quality of images from the web."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.prompts import Q_INSIGHT_RATING, Q_INSIGHT_SYSTEM


@dataclass(frozen=True)
class Koniq(Benchmark):
    """KonIQ-10k's test images as Q-Insight and DeQA-Score take them; PLCC and SRCC with people's mean rating.

    Q-Insight publishes its prompt and its reading of an answer, not the code of its evaluation: an
    answer that cannot be read is left out of the official numbers, and counts as the worst rating for
    its image in the strict ones. It shows the image after the question, here it comes first. DeQA-Score
    fits four parameters to its scores before PLCC; here nothing is fitted.

    Source: Hosu et al. 2020, arXiv 1910.06180; You et al. 2025, arXiv 2501.11561; Q-Insight, arXiv
    2503.22679.
    """

    origin: ClassVar[str] = "https://database.mmsp-kn.de/koniq-10k-database.html"
    licence: ClassVar[str] = "lists: Apache-2.0; images: see the data set's page"
    hub: ClassVar[str] = "zhiyuanyou/Data-DeQA-Score (KONIQ/metas), images of KonIQ-10k"
    checked: ClassVar[str] = (
        "licence of the lists: a copy's hub card; columns: DeQA-Score's build_soft_labels; count: "
        "counted in Q-Align's test_koniq.json at 14dfdff, the same split; 2026-11"
    )
    split: ClassVar[str] = "train"
    count: ClassVar[int] = 2010
    files: ClassVar[tuple[str, ...]] = ("KONIQ/metas/test_koniq_2k.json",)
    columns: ClassVar[Mapping[str, str]] = {
        "id": "id", "image": "file", "question": "ask", "number": "gt_score_norm",
    }  # fmt: skip
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "q_insight@08308fd",
            ask=Q_INSIGHT_RATING,
            system=Q_INSIGHT_SYSTEM,
            max_tokens=1024,
            scorer="rating_tagged",
            template="think_answer",
            whole=True,
            aggregate="plcc",
            also=("srcc",),
        ),
    )
    strict: ClassVar[Strict] = Strict(
        "regression",
        {"measure": "step", "tolerance": 0.35, "key": "rating"},
        aggregate="plcc",
        also=("srcc",),
    )

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add our question; paths are from the folder of all data sets."""
        return {**row, "file": row["image"], "ask": Q_INSIGHT_RATING}
