"""EMMA: mathematics, physics, chemistry and coding that need the picture at every step."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Emma(Benchmark):
    """EMMA's 2,788 questions; images stand where the text names them.

    lmms-eval has a judge decide every answer; without one an answer is right whose letter, box or
    announced words are the truth to the letter. It draws its answers at temperature 0.7.

    Source: Hao et al. 2025, arXiv 2501.05444; lmms-eval tasks/emma.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/luckychao/EMMA"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "luckychao/EMMA"
    checked: ClassVar[str] = (
        "counts: arXiv 2501.05444; folders and columns: hub pages; prompt and rule: lmms-eval, which reads "
        "the copy lmms-lab-encoder/EMMA; 2026-11; licence: the card states none"
    )
    count: ClassVar[int] = 2788
    files: ClassVar[tuple[str, ...]] = ("Chemistry", "Coding", "Math", "Physics")
    columns: ClassVar[Mapping[str, str]] = {
        "id": "pid",
        "image": "images",
        "question": "asked",
        "options": "texts",
        "choice": "letter",
        "answer": "answer",
        "rewards": "judged_by",
    }
    groups: ClassVar[tuple[str, ...]] = ("subject", "category")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}\n{listed}\nAnswer with the option's letter from the given choices and put the "
            'letter in one "\\boxed{}". Please solve the problem step by step.{left}',
            ask_open="{question}\nAnswer the question using a single word or phrase and put the answer in "
            'one "\\boxed{}". Please solve the problem step by step.{left}',
            max_tokens=4096,
            scorer="emma",
            interleaved=True,
            template="boxed",
            whole=True,
            judge="gpt-4o",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Put the context before the question, list the options, and collect the images that are named.

        lmms-eval splits the text at four images; a fifth it shows after the text.
        """
        several = str(row["type"]).lower() == "multiple choice"
        texts = [str(text) for text in row["options"]] if several else []
        listed = "".join(
            f"{letter}: {text}\n" for letter, text in zip("ABCDEFGHIJ", texts, strict=False)
        )
        asked = f"{row['context']}\n{row['question']}"
        names = sorted(set(re.findall(r"<(image_\d+)>", f"{asked}{listed}")))
        asked, listed = (re.sub(r"<image_([1-4])>", r"<image \1>", t) for t in (asked, listed))
        marks = len(re.findall(r"<image [1-4]>", f"{asked}{listed}"))
        answer = str(row["answer"])
        in_words = not any(map(str.isdigit, answer))
        return {
            **row,
            "images": [row[name] for name in names],
            "asked": asked,
            "texts": texts or None,
            "listed": listed,
            "left": "<image 5>" * max(0, len(names) - marks),
            "letter": answer if several else None,
            "answer": answer,
            "judged_by": None if several else ["exact" if in_words else "math"],
        }
