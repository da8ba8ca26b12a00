"""OlympiadBench: olympiad problems of mathematics and physics with figures, in English and Chinese."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmark_rules.mathematics import is_number
from vlmrl.benchmarking.base import Benchmark, Official, Strict

_SETS = ("maths_en_COMP", "maths_zh_CEE", "maths_zh_COMP", "physics_en_COMP", "physics_zh_CEE")
_ENGLISH = (
    "Please calculate the answer according to the given requirements and the information provided. Please "
    "use LaTeX format to represent the variables and formulas used in the solution process and results. "
    "Please put your solution in \\boxed{"
)
_CHINESE = (
    "请根据题目的要求和所提供的信息计算得出答案。解答过程和结果中使用的变量和公式请使用"
    "LaTeX格式表示。请把答案放在\\boxed{"
)


@dataclass(frozen=True)
class Olympiadbench(Benchmark):
    """OlympiadBench's open problems with images; those without, and proofs, are left out.

    The prompt and the rule are those of lmms-eval's task olympiadbench_boxed, of whose two figures this is
    math_verify; the other, exact_match, lets sympy simplify what a model wrote. The task reads a copy
    of the data, whose rows may be fewer. It shows five images at most.

    Source: He et al. 2024, arXiv 2402.14008; lmms-eval tasks/olympiadbench_mimo.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/Hothan/OlympiadBench"
    licence: ClassVar[str] = "Apache-2.0"
    hub: ClassVar[str] = "Hothan/OlympiadBench"
    checked: ClassVar[str] = (
        "files and licence: hub card; counts 150, 1,910, 56, 456 and 1,483: EvalScope's page olympiad_bench; "
        "columns: lmms-eval; 2026-11; that the copy lscpku/OlympiadBench-image has the same rows is unchecked"
    )
    split: ClassVar[str] = "train"
    count: ClassVar[int] = 4055
    files: ClassVar[tuple[str, ...]] = tuple(
        f"OlympiadBench/OE_MM_{name}/OE_MM_{name}.parquet" for name in _SETS
    )
    columns: ClassVar[Mapping[str, str]] = {
        "id": "id",
        "image": "images",
        "question": "question",
        "answer": "right",
        "number": "number",
        "rewards": "judged_by",
    }
    groups: ClassVar[tuple[str, ...]] = ("subject", "language")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{before}{question}\n{after}",
            max_tokens=16384,
            scorer="olympiad_lmms",
            template="boxed",
            whole=True,
        ),
    )
    strict: ClassVar[Strict] = Strict("math", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the words around the question, and judge by the error that is allowed; equations as texts."""
        right, error = str(row["final_answer"][0]), str(row["error"])
        bare = right.strip("$ ")
        numeric = is_number(bare) and is_number(error)
        allowed = (
            [{"verifier": "number", "options": {"tolerance": float(error)}}] if numeric else None
        )
        by_text = ["exact"] if row["answer_type"] == "Equation" else None
        images = [row[f"image_{n}"] for n in range(1, 6)]
        before, after = _around(row)
        return {
            **row,
            "before": before,
            "after": after,
            "images": [image for image in images if image is not None],
            "right": right,
            "number": float(bare) if numeric else None,
            "judged_by": allowed or by_text,
        }


def _around(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return what the prompt says before and after the question, in its language."""
    kind, field = row["answer_type"], row["subfield"]
    kind = "proof based" if kind == "Need_human_evaluate" else kind
    several = bool(row["is_multiple_answer"])
    if row["language"] == "English":
        each = (
            "The question has multiple answers, each of them"
            if several
            else "The answer of the question"
        )
        held = "MULTIPLE ANSWERS CONNECTED WITH COMMAS" if several else ""
        before = f"The following is a question from an International {field} competition.\n"
        return before, f"{each} should be {kind}.\n{_ENGLISH}{held}}}"
    each = "题目有多个答案，答案类型均为" if several else "答案类型为"
    held = "用英⽂逗号连接的多个答案" if several else ""
    return f"以下是中国{field}竞赛中的解答题。\n", f"{each}{kind}。\n{_CHINESE}{held}}}"
