"""CharXiv's descriptive questions: what charts of scientific papers show, four questions each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.chart_prompts import KINDS, descriptive_question
from vlmrl.benchmarking.rows import EACH


@dataclass(frozen=True)
class CharxivDescriptive(Benchmark):
    """CharXiv's validation charts, four questions each; a judge decides every answer.

    Without it only an answer that is the truth to the letter is sure to be right, which is the lower
    bound here. lmms-eval repeats the thousand charts four times and takes the number of a question from
    its place in all of them, so that it asks each chart one of its questions four times: by its
    protocol the other three do not count. The limit of tokens of the paper's code is that for Qwen2-VL.

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
    each: ClassVar[tuple[str, ...]] = tuple(f"descriptive_q{number}" for number in range(1, 5))
    columns: ClassVar[Mapping[str, str]] = {
        "id": "name",
        "image": "image",
        "question": "asked",
        "answer": "right",
    }
    cluster: ClassVar[str] = "figure_path"
    groups: ClassVar[tuple[str, ...]] = ("kind", "category")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}",
            max_tokens=32768,
            scorer="equal_text_once_a_chart",
            judge="gpt-4o-2024-05-13",
        ),
        Official(
            "charxiv@7ebe88f",
            ask="{unstripped}",
            max_tokens=1024,
            scorer="equal_text",
            unit="percent",
            judge="gpt-4o-2024-05-13",
        ),
    )
    strict: ClassVar[Strict] = Strict("exact", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the question whose template a row names, its answer and its kind."""
        column = str(row[EACH])
        question = descriptive_question(int(row[column]), row)
        return {
            **row,
            "name": f"{row['figure_path']} {column[-1]}",
            "asked": question.strip(),
            "unstripped": question,
            "right": str(row[column.replace("_q", "_a")]),
            "kind": KINDS[int(row[column])],
        }
