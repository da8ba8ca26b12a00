"""MindCube's whole set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarks.mindcube import Mindcube


@dataclass(frozen=True)
class MindcubeFull(Mindcube):
    """MindCube's 21,154 questions, by which its paper reports, asked and scored as its tiny set.

    Source: Yin et al. 2025, arXiv 2506.21458; lmms-eval tasks/mindcube (task mindcube_full),
    VLMEvalKit MindCubeBench_raw_qa.
    """

    hub: ClassVar[str] = "oscarqjh/MindCube_lmmseval (config full)"
    checked: ClassVar[str] = (
        "count: the paper's, not read off the hub; columns: lmms-eval; licence: unchecked; 2026-11"
    )
    count: ClassVar[int] = 21154
    splits: ClassVar[Mapping[str, int]] = {}
    files: ClassVar[tuple[str, ...]] = ("full",)
