"""RefSpatial-Bench: point at what several steps of spatial reasoning lead to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.rows import mask_of


@dataclass(frozen=True)
class Refspatial(Benchmark):
    """RefSpatial-Bench's task `location`; other splits are placement and unseen.

    The official score is the share of the points that lie in the mask. Strict: one point, in it.

    Source: Zhou et al. 2025, arXiv 2506.04308; lmms-eval tasks/refspatial.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/BAAI/RefSpatial-Bench"
    licence: ClassVar[str] = "Apache-2.0"
    hub: ClassVar[str] = "BAAI/RefSpatial-Bench"
    checked: ClassVar[str] = "counts, columns and licence: hub card, 2026-11"
    split: ClassVar[str] = "location"
    count: ClassVar[int] = 100
    splits: ClassVar[Mapping[str, int]] = {"placement": 100, "unseen": 77}
    columns: ClassVar[Mapping[str, str]] = {
        "id": "id", "image": "image", "question": "prompt", "masks": "region",
    }  # fmt: skip
    box_space: ClassVar[str] = "norm1"
    groups: ClassVar[tuple[str, ...]] = ("step",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question} {suffix} Return only list of tuples, don't add anything else.",
            max_tokens=1024,
            scorer="points_in_mask",
        ),
    )
    strict: ClassVar[Strict] = Strict("point", {"binary": True})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the mask as run lengths."""
        return {**row, "region": [mask_of(row, "mask")]}
