"""MMBench in English: each question with its options in every rotation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class MmbenchEn(Benchmark):
    """MMBench's English dev split; a question counts if all its rotations are right.

    lmms-eval's prompt and scorer are those of the task mmbench_en_dev_static, which asks no judge.
    VLMEvalKit's MMBench_DEV_EN holds the same rotations (dataset/image_mcq.py).

    Source: Liu et al. 2023, arXiv 2307.06281; lmms-eval tasks/mmbench, VLMEvalKit MMBench_DEV_EN.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab-encoder/MMBench"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "lmms-lab-encoder/MMBench (config en)"
    checked: ClassVar[str] = "count: EvalScope 1.14.1's statistics, 2026-11; licence: unchecked"
    split: ClassVar[str] = "dev"
    count: ClassVar[int] = 4329
    columns: ClassVar[Mapping[str, str]] = {
        "image": "image",
        "question": "question",
        "options": "listed",
        "choice": "answer",
    }
    files: ClassVar[tuple[str, ...]] = ("en",)
    cluster: ClassVar[str] = "question_group"
    groups: ClassVar[tuple[str, ...]] = ("category",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{hinted}{question} There are several options:\n{options}\n\nAnswer with "
            "the option's letter from the given choices directly.",
            max_tokens=1024,
            scorer="letter_mmbench",
            aggregate="all_of_groups",
            by="question_group",
            unit="percent",
        ),
        Official(
            "vlmevalkit@e8e78f0",
            ask="{hint_line}Question: {question}\nOptions:\n{options}\nPlease select the correct "
            "answer from the options above. \n",
            max_tokens=2048,
            scorer="letter_vlmeval",
            aggregate="all_of_groups",
            by="question_group",
            judge="gpt-4o-mini",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {}, aggregate="all_of_groups", by="question_group")

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """List the options that there are, and add the question that a rotation belongs to."""
        listed = [row[letter] for letter in "ABCD" if row.get(letter) not in (None, "", "nan")]
        hint = row.get("hint")
        hinted = f"{hint} " if hint not in (None, "", "nan") else ""
        hint_line = f"Hint: {hint}\n" if hinted else ""
        group = int(row["index"]) % 1_000_000
        more = {"hinted": hinted, "hint_line": hint_line, "question_group": group}
        return {**row, **more, "listed": listed}
