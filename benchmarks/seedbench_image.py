"""SEED-Bench's questions about one image, the part that most model cards quote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from vlmrl.benchmarking.base import Official
from vlmrl.benchmarks.seedbench import Seedbench


@dataclass(frozen=True)
class SeedbenchImage(Seedbench):
    """SEED-Bench's 14,233 questions about one image, of the 17,990 rows of the split.

    lmms-eval prints it beside all and the videos; VLMEvalKit's SEEDBench_IMG is a table of its own,
    whose rows were not compared with these.

    Source: Li et al. 2023, arXiv 2307.16125; lmms-eval tasks/seedbench, VLMEvalKit SEEDBench_IMG.
    """

    only: ClassVar[Mapping[str, str]] = {"data_type": "image"}
    groups: ClassVar[tuple[str, ...]] = ("question_type_id",)
    officials: ClassVar[tuple[Official, ...]] = (
        replace(Seedbench.officials[0], task=""),
        Official(
            "vlmevalkit@e8e78f0",
            ask="Question: {question}\nOptions:\n{options}\nPlease select the correct answer from "
            "the options above. \n",
            max_tokens=2048,
            scorer="letter_vlmeval",
            judge="gpt-4o-mini",
        ),
    )
