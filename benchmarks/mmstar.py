"""MMStar: multiple choice that needs the image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Mmstar(Benchmark):
    """MMStar's validation split; the question holds the options.

    lmms-eval reports the mean over the 18 fine categories, VLMEvalKit over all questions.

    Source: Chen et al. 2024, arXiv 2403.20330; lmms-eval tasks/mmstar, VLMEvalKit MMStar.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/Lin-Chen/MMStar"
    licence: ClassVar[str] = "none stated on the data set's page"
    hub: ClassVar[str] = "Lin-Chen/MMStar"
    checked: ClassVar[str] = (
        "count: EvalScope 1.14.1's statistics; columns: hub card, which states no licence; 2026-11"
    )
    split: ClassVar[str] = "val"
    count: ClassVar[int] = 1500
    files: ClassVar[tuple[str, ...]] = ("mmstar.parquet",)
    columns: ClassVar[Mapping[str, str]] = {
        "id": "index", "image": "image", "question": "question", "choice": "answer",
    }  # fmt: skip
    groups: ClassVar[tuple[str, ...]] = ("category",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}\nAnswer with the option's letter from the given choices directly",
            max_tokens=128,
            scorer="letter_lmms",
            aggregate="mean_of_groups",
            by="l2_category",
            task="mmstar",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})
