"""OCRBench v2: reading, extracting and reasoning about text in English and Chinese images."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.data.files.rows import WHERE
from vlmrl.errors import UserError

TASKS = (
    *("APP agent en", "ASCII art classification en", "math QA en", "reasoning VQA en"),
    *("science QA en", "text recognition en", "document classification en", "cognition VQA en"),
    *("diagram QA en", "cognition VQA cn", "reasoning VQA cn", "formula recognition en"),
    *("formula recognition cn", "text counting en", "VQA with position en", "text grounding en"),
    *("key information extraction en", "key information mapping en"),
    *("key information extraction cn", "handwritten answer extraction cn"),
)
"""The tasks that count here."""


@dataclass(frozen=True)
class OcrbenchV2(Benchmark):
    """OCRBench v2 without the tasks whose rules need more packages; compare it by task, not as a whole.

    Left out are those of lmms-eval's rules by tree edit distance (table parsing en and cn, chart parsing
    en, document parsing en and cn), by BLEU and METEOR (full-page OCR en and cn, fine-grained text
    recognition en, text translation cn, and the rows of handwritten answer extraction cn that ask for
    a short answer) and text spotting en. The strict number judges the answer but not the box of VQA with
    position en, and of several accepted values of a field the first.

    Source: Fu et al. 2025, arXiv 2501.00321; lmms-eval tasks/ocrbench_v2.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/ling99/OCRBench_v2"
    licence: ClassVar[str] = "MIT"
    hub: ClassVar[str] = "ling99/OCRBench_v2"
    checked: ClassVar[str] = (
        "count, columns and licence: hub card; tasks: EvalScope 1.14.1's statistics, 2026-11"
    )
    split: ClassVar[str] = "test"
    count: ClassVar[int] = 10000
    only: ClassVar[Mapping[str, str]] = {"kept": "yes"}
    columns: ClassVar[Mapping[str, str]] = {
        "id": "id",
        "image": "image",
        "question": "question",
        "answer": "answers",
        "fields": "fields",
        "boxes": "boxes",
        "rewards": "judged_by",
    }
    box_space: ClassVar[str] = "norm1000"
    groups: ClassVar[tuple[str, ...]] = ("type", "language")
    officials: ClassVar[tuple[Official, ...]] = (
        Official("lmms_eval@0.7.3", ask="{asked}", max_tokens=128, scorer="ocrbench_v2"),
    )
    strict: ClassVar[Strict] = Strict("exact", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add what the rule of the row's task needs, and by which verifier the row is judged."""
        task, question, answers = str(row["type"]), str(row["question"]), [*row["answers"]]
        kept = task in TASKS and not (task.startswith("handwritten") and "简答" in question)
        facts: dict[str, Any] = {"fields": None, "boxes": None, "judged_by": None}
        numbers = answers if task == "text grounding en" else row.get("bbox")
        if kept and task.startswith("key information"):
            fields = _fields(row, str(answers[0]))
            facts["fields_of"] = json.dumps(fields, ensure_ascii=False)
            facts["fields"] = {name: values[0] for name, values in fields.items()}
            facts["judged_by"] = ["json_fields"]
        elif task in ("VQA with position en", "text grounding en"):
            corners = [int(number) for number in numbers or ()]
            facts["place"] = json.dumps(corners)
            if task == "text grounding en":
                facts |= {"boxes": [corners], "judged_by": ["box_iou"]}
            else:
                facts |= {"fields": {"answer": answers[0]}, "judged_by": ["json_fields"]}
        return {
            **row,
            **facts,
            "asked": question.strip(),
            "language": task.rpartition(" ")[2],
            "kept": "yes" if kept else "no",
        }


def _fields(row: Mapping[str, Any], text: str) -> dict[str, list[str]]:
    """Return the accepted values of each field, from JSON or from Python's form."""
    value: object = text.strip('"')
    try:
        for _ in range(2):  # a text may stand in a text
            value = _parsed(value) if isinstance(value, str) else value
    except (ValueError, SyntaxError):
        value = None
    if not isinstance(value, dict):
        where = f"{row.get(WHERE, 'row')}: column 'answers'"
        raise UserError(f"{where}: expected an object of fields, got {text!r:.60}")
    return {
        name: [str(each) for each in (values if isinstance(values, list) else [values])]
        for name, values in value.items()
    }


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return ast.literal_eval(text)
