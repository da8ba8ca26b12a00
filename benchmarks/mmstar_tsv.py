"""MMStar as VLMEvalKit's table has it: the options in columns of their own."""

from __future__ import annotations

import ast
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class MmstarTsv(Benchmark):
    """MMStar's 1,500 questions by VLMEvalKit's table and prompt; the mean over all questions.

    The benchmark `mmstar` reads the other published file, in which the question holds the options.

    Source: Chen et al. 2024, arXiv 2403.20330; VLMEvalKit MMStar (dataset/image_mcq.py).
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/Lin-Chen/MMStar"
    licence: ClassVar[str] = "none stated on the data set's page"
    hub: ClassVar[str] = "Lin-Chen/MMStar"
    checked: ClassVar[str] = "file: hub file list; columns and prompt: VLMEvalKit's code; 2026-11"
    split: ClassVar[str] = "val"
    count: ClassVar[int] = 1500
    files: ClassVar[tuple[str, ...]] = ("MMStar.tsv",)
    columns: ClassVar[Mapping[str, str]] = {
        "id": "index",
        "image": "images",
        "question": "question",
        "options": "listed",
        "choice": "answer",
    }
    groups: ClassVar[tuple[str, ...]] = ("category",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "vlmevalkit@e8e78f0",
            ask="{hint_line}Question: {question}\nOptions:\n{options}\nPlease select the correct "
            "answer from the options above. \n",
            max_tokens=2048,
            scorer="letter_vlmeval",
            ask_open="{hint_line}Question: {question}\n",
            judge="gpt-4o-mini",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """List the options that there are, and the images: one, or a list of them as Python writes it."""
        listed = [row[letter] for letter in string.ascii_uppercase if row.get(letter) is not None]
        image, hint = row["image"], row.get("hint")
        images = ast.literal_eval(image) if image[0] == "[" else [image]
        more = {"hint_line": "" if hint is None else f"Hint: {hint}\n", "images": images}
        return {**row, **more, "listed": listed or None}
