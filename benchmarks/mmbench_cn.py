"""MMBench in Chinese: each question with its options in every rotation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarking.base import Official
from vlmrl.benchmarks.mmbench_en import MmbenchEn


@dataclass(frozen=True)
class MmbenchCn(MmbenchEn):
    """MMBench's Chinese dev split; a question counts if all its rotations are right.

    lmms-eval asks a judge where its rule finds no letter; here such an answer is wrong.

    Source: Liu et al. 2023, arXiv 2307.06281; lmms-eval tasks/mmbench.
    """

    hub: ClassVar[str] = "lmms-lab-encoder/MMBench (config cn)"
    files: ClassVar[tuple[str, ...]] = ("cn",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{hinted}{que"
            "stion} \u6709\u5982\u4e0b\u51e0\u4e2a"
            "\u9009\u9879\uff1a\n{options"
            "}\n\n\u8bf7\u76f4\u63a5\u4f7f\u7528\u6240\u63d0\u4f9b\u7684"
            "\u9009\u9879\u5b57\u6bcd\u4f5c\u4e3a\u7b54\u6848\u56de\u7b54\u3002",
            max_tokens=256,
            scorer="letter_mmbench_judged",
            aggregate="all_of_groups",
            by="question_group",
            unit="percent",
            judge="gpt-4o-2024-11-20",
        ),
    )
