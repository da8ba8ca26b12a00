"""PixMo-Count: count objects in photos."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class PixmoCount(Benchmark):
    """PixMo-Count's test split as lmms-eval reads it.

    The images are links in the original data, and some have died.

    Source: Deitke et al. 2024 (Molmo), arXiv 2409.17146; lmms-eval tasks/pixmo_count.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/allenai/pixmo-count"
    licence: ClassVar[str] = "ODC-BY 1.0"
    hub: ClassVar[str] = "kcz358/pixmo-count"
    checked: ClassVar[str] = (
        "columns: lmms-eval; count and licence: hub card of allenai/pixmo-count; 2026-11"
    )
    count: ClassVar[int] = 540
    columns: ClassVar[Mapping[str, str]] = {
        "image": "image", "question": "question", "answer": "answer",
    }  # fmt: skip
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}\nAnswer with a single number.",
            max_tokens=32,
            scorer="count_first",
            task="pixmo_count",
        ),
    )
    strict: ClassVar[Strict] = Strict("exact", {})
