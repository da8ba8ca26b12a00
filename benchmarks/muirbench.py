"""MuirBench: questions about several images, a part of them without an answer among the options."""

from __future__ import annotations

import itertools
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Muirbench(Benchmark):
    """MuirBench's 2,600 questions of 12 tasks; question and options say by `<image>` where images belong.

    lmms-eval puts all images first and leaves the marks in the text; VLMEvalKit puts the images at the
    marks, and asks a judge where its rule finds no letter. Our own prompt numbers the marks. Models to
    which `<image>` itself stands for an image, such as LLaVA-OneVision, cannot be asked as lmms-eval asks.

    Source: Wang et al. 2024, arXiv 2406.09411; lmms-eval tasks/muirbench, VLMEvalKit MUIRBench.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/MUIRBENCH/MUIRBENCH"
    licence: ClassVar[str] = "CC-BY-4.0"
    hub: ClassVar[str] = "MUIRBENCH/MUIRBENCH"
    checked: ClassVar[str] = (
        "count: the paper, and the hub's list (2.6k); columns: lmms-eval; licence: hub card; 2026-11"
    )
    split: ClassVar[str] = "test"
    count: ClassVar[int] = 2600
    columns: ClassVar[Mapping[str, str]] = {
        "id": "idx",
        "image": "image_list",
        "question": "numbered",
        "options": "numbered_options",
        "choice": "answer",
    }
    groups: ClassVar[tuple[str, ...]] = ("task", "image_relation", "image_type")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{marked}\nAnswer with the option's letter from the given choices directly.",
            max_tokens=16,
            scorer="letter_muirbench",
        ),
        Official(
            "vlmevalkit@e8e78f0",
            ask="{marked}\nAnswer with the option's letter from the given choices directly.",
            max_tokens=2048,
            scorer="letter_muirbench_vlmeval",
            mark="<image>",
            judge="chatgpt-0125",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the question and its options as they are asked, and with a number in each mark."""
        numbers = itertools.count(1)
        texts = [str(text) for text in (row["question"], *row["options"])]
        numbered = [re.sub("<image>", lambda _: f"<image {next(numbers)}>", text) for text in texts]
        lettered = zip(string.ascii_uppercase, texts[1:], strict=False)
        marked = "\n".join([texts[0], *(f"{letter}. {text}" for letter, text in lettered)])
        return {
            **row,
            "marked": marked,
            "numbered": numbered[0],
            "numbered_options": numbered[1:],
        }
