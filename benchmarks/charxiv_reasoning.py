"""CharXiv's reasoning questions: charts of scientific papers, one question each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.chart_prompts import ANSWER_KINDS, reasoning_question


@dataclass(frozen=True)
class CharxivReasoning(Benchmark):
    """CharXiv's validation charts, one question each; a judge decides every answer.

    Without it only an answer that is the truth to the letter is sure to be right, which is the lower
    bound here. The paper's code says in the prompt what the kind of answer has to be; lmms-eval takes
    the source of the question for that kind, so that it says it wrongly, and never how many decimal
    places are wanted. The limit of tokens of the paper's code is that for Qwen2-VL.

    Source: Wang et al. 2024, arXiv 2406.18521; princeton-nlp/CharXiv, lmms-eval tasks/charxiv.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/princeton-nlp/CharXiv"
    licence: ClassVar[str] = "CC BY-SA 4.0"
    hub: ClassVar[str] = "princeton-nlp/CharXiv"
    checked: ClassVar[str] = (
        "count: the paper's data; files and licence: hub card; columns: lmms-eval, 2026-11"
    )
    split: ClassVar[str] = "validation"
    count: ClassVar[int] = 1000
    files: ClassVar[tuple[str, ...]] = ("val.parquet",)
    columns: ClassVar[Mapping[str, str]] = {
        "id": "figure_path",
        "image": "image",
        "question": "asked",
        "answer": "reasoning_a",
    }
    groups: ClassVar[tuple[str, ...]] = ("kind", "category")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{by_source}",
            max_tokens=32768,
            scorer="equal_text",
            judge="gpt-4o-2024-05-13",
            task="charxiv_val_reasoning",
        ),
        Official(
            "charxiv@7ebe88f",
            ask="{by_kind}",
            max_tokens=1024,
            scorer="equal_text",
            unit="percent",
            judge="gpt-4o-2024-05-13",
        ),
    )
    strict: ClassVar[Strict] = Strict("exact", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the question as the paper's code asks it and as lmms-eval does, and the kind of answer."""
        question, right = str(row["reasoning_q"]), str(row["reasoning_a"])
        by_kind = reasoning_question(question, int(row["reasoning_a_type"]), right)
        by_source = reasoning_question(question, int(row["reasoning_q_source"]), right)
        return {
            **row,
            "asked": by_kind.strip(),
            "by_kind": by_kind,
            "by_source": by_source.strip(),
            "kind": ANSWER_KINDS[int(row["reasoning_a_type"])],
        }
