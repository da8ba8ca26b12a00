"""VQA-RAD: questions about radiology images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarking.base import Official
from vlmrl.benchmarks.path_vqa import PathVqa


@dataclass(frozen=True)
class VqaRad(PathVqa):
    """VQA-RAD's test split. No harness asks it: the number is ours, of closed and open questions apart.

    Source: Lau et al. 2018, Scientific Data 5, 180251.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/flaviagiammarino/vqa-rad"
    licence: ClassVar[str] = "CC0-1.0"
    hub: ClassVar[str] = "flaviagiammarino/vqa-rad"
    checked: ClassVar[str] = "count, columns and licence: hub card, 2026-11"
    count: ClassVar[int] = 451
    officials: ClassVar[tuple[Official, ...]] = ()
