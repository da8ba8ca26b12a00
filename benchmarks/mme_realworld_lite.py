"""MME-RealWorld-Lite: at most 50 questions of each task of MME-RealWorld."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from vlmrl.benchmarking.base import Official
from vlmrl.benchmarks.mme_realworld import MmeRealworld


@dataclass(frozen=True)
class MmeRealworldLite(MmeRealworld):
    """MME-RealWorld-Lite's 1,919 questions.

    Source: Zhang et al. 2024, arXiv 2408.13257; lmms-eval tasks/mme_realworld, VLMEvalKit MMERealWorld.
    """

    origin: ClassVar[str] = (
        "https://huggingface.co/datasets/yifanzhang114/MME-RealWorld-lite-lmms-eval"
    )
    hub: ClassVar[str] = "yifanzhang114/MME-RealWorld-lite-lmms-eval"
    checked: ClassVar[str] = (
        "count: others' counts of the file; licence: hub card of MME-RealWorld; columns: lmms-eval, "
        "2026-11"
    )
    count: ClassVar[int] = 1919
    officials: ClassVar[tuple[Official, ...]] = (
        replace(MmeRealworld.officials[0], task="mmerealworld_lite"),
        replace(MmeRealworld.officials[1], task="MMERealWorld MME-RealWorld-Lite"),
    )
