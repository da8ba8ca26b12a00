"""CMMMU: questions of 30 college subjects in Chinese."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmark_rules.mathematics import is_number
from vlmrl.benchmarking.base import Benchmark, Official, Strict

_TASKS = {
    "选择": "请回答以下多项选择题，并选出正确选项。这些题目可能包括单选和多选题型。"
    "如果所提供的信息不足以确定一个明确的答案，那么请根据可用的数据和你的判断来选择最可能正确的选项。",
    "判断": "请回答以下判断题，并根据题目描述和所给的信息来判断问题中陈述的对错。"
    "如果信息不完整或不足以作出绝对判断，请运用你的逻辑推理和现有信息来做出最可能的判断。",
    "填空": "请回答以下填空题，并根据题目的要求和所提供的信息来给出最恰当的答案。如果信息不足以确切回答，"
    "那么请依据现有的数据和你的推理能力来填写最合理的答案。",
}
"""What is asked, by the kind of question: options, right or wrong, a blank."""
_SAME = {"对": ["对", "正确"], "错": ["错", "错误"]}


@dataclass(frozen=True)
class Cmmmu(Benchmark):
    """CMMMU's validation split: one or several options, right or wrong, or a blank to fill.

    lmms-eval draws an option, or right and wrong, where it reads none. Its test split has no answers.

    Source: Zhang et al. 2024, arXiv 2401.11944; lmms-eval tasks/cmmmu.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/m-a-p/CMMMU"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "lmms-lab-encoder/CMMMU"
    checked: ClassVar[str] = (
        "count and columns: hub card of lmms-lab/CMMMU; prompt and rule: lmms-eval; 2026-11; licence: "
        "the card states none"
    )
    split: ClassVar[str] = "val"
    count: ClassVar[int] = 900
    columns: ClassVar[Mapping[str, str]] = {
        "id": "id",
        "image": "images",
        "question": "asked",
        "options": "options",
        "choice": "letter",
        "number": "number",
        "answer": "accepted",
        "rewards": "judged_by",
    }
    groups: ClassVar[tuple[str, ...]] = ("category", "type")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{instruction}\n\n问题：{question}\n{listed}正确答案：\n",
            max_tokens=16,
            scorer="cmmmu_lmms",
            unread="expected",
            task="cmmmu_val",
        ),
    )
    strict: ClassVar[Strict] = Strict("exact", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Name the images in the texts as the harness does, and state the truth by the kind of question."""
        kind, right = row["type"], str(row["answer"])
        options = [str(row[f"option{n}"]) for n in range(1, 5)] if kind == "选择" else []
        texts = [str(row["question"]), *options]
        for n in range(1, 6):
            mark = f'<img="{row[f"image_{n}_filename"]}">'
            texts = [text.replace(mark, f"<图片 {n}>") for text in texts]
        asked, *options = texts
        named = re.findall(r"<图片 (\d+)>", " ".join(texts))
        lines = [f"({letter}) {text}\n" for letter, text in zip("ABCD", options, strict=False)]
        bare = right.replace(",", "")
        number = float(bare) if kind == "填空" and is_number(bare) else None
        letter = right if kind == "选择" and len(right) == 1 else None
        accepted = _SAME.get(right) or [right, ", ".join(right), ",".join(right), "、".join(right)]
        return {
            **row,
            "images": [row[f"image_{n}"] for n in named],
            "asked": asked,
            "options": options or None,
            "listed": f"选项：\n{''.join(lines)}\n" if options else "",
            "instruction": _TASKS[kind],
            "letter": letter,
            "number": number,
            "accepted": [right] if kind == "填空" else accepted,
            "judged_by": ["choice"] if letter else ["number"] if number is not None else None,
        }
