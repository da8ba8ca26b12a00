"""MME-RealWorld: small things in large pictures of streets, tables and satellites, by five options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict

_ASK = (
    "{question} The choices are listed below:\n{lines}\nSelect the best answer to the above "
    "multiple-choice question based on the image. Respond with only the letter (A, B, C, D, or E) of "
    "the correct option."
)


@dataclass(frozen=True)
class MmeRealworld(Benchmark):
    """MME-RealWorld's English questions; the last option says that the image does not show it.

    Both harnesses take an empty answer for A. The Chinese questions are another data set.

    Source: Zhang et al. 2024, arXiv 2408.13257; lmms-eval tasks/mme_realworld, VLMEvalKit MMERealWorld.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/yifanzhang114/MME-RealWorld-Lmms-eval"
    licence: ClassVar[str] = "Apache-2.0"
    hub: ClassVar[str] = "yifanzhang114/MME-RealWorld-Lmms-eval"
    checked: ClassVar[str] = (
        "count: others' counts of the file; licence: hub card of MME-RealWorld; columns: lmms-eval, "
        "2026-11"
    )
    split: ClassVar[str] = "train"
    count: ClassVar[int] = 23609
    columns: ClassVar[Mapping[str, str]] = {
        "id": "index",
        "image": "bytes",
        "question": "question",
        "options": "listed",
        "choice": "answer",
    }
    groups: ClassVar[tuple[str, ...]] = ("category",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask=_ASK + "\nThe best answer is: ",
            max_tokens=16,
            scorer="letter_mme_realworld_lmms",
            task="mmerealworld",
        ),
        Official(
            "vlmevalkit@e8e78f0",
            ask=_ASK + " \nThe best answer is:",
            max_tokens=2048,
            scorer="letter_mme_realworld_vlmeval",
            whole=True,
            task="MMERealWorld MME-RealWorld",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """List the options without their letters, and join them with these for the prompts."""
        lines = [str(line) for line in row["multi-choice options"]]
        return {**row, "listed": [line[4:] for line in lines], "lines": "\n".join(lines)}
