"""MMAU-Pro: questions with options about long, mixed, spatial and several recordings."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class MmauPro(Benchmark):
    """MMAU-Pro's questions with options; the audio is in the unpacked data.zip.

    Its code takes for an answer the option whose embedding by NV-Embed-v2 is the nearest. Without a judge
    only the text of an option is read here, which is nearest to itself. It has no prompt: that is ours.
    Its 215 open questions, which a judge rates, and its 87 instructions are left out.

    Source: Kumar et al. 2025, arXiv 2508.13992, evaluate_mmau_pro_comprehensive.py.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/gamma-lab-umd/MMAU-Pro"
    licence: ClassVar[str] = "CC-BY-NC-4.0"
    hub: ClassVar[str] = "gamma-lab-umd/MMAU-Pro"
    checked: ClassVar[str] = (
        "count: MMAU-Pro's README; columns: its code, and scripts that read its test.parquet; licence: "
        "a list of audio benchmarks that quotes the hub card; 2026-11"
    )
    count: ClassVar[int] = 5305
    files: ClassVar[tuple[str, ...]] = ("test.parquet",)
    only: ClassVar[Mapping[str, str]] = {"closed": "yes"}
    columns: ClassVar[Mapping[str, str]] = {
        "id": "id",
        "audio": "clips",
        "question": "question",
        "options": "texts",
        "choice": "letter",
        "answer": "unlisted",
        "rewards": "judged_by",
    }
    groups: ClassVar[tuple[str, ...]] = ("category", "length_type")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "mmau_pro@960e93a",
            ask="{question}\n{listed}",
            max_tokens=128,
            scorer="text_mmau_pro",
            judge="nvidia/NV-Embed-v2",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the options, and the letter of the right one; a right text that is none of them stays one."""
        choices = row["choices"]
        texts = [] if choices is None else [str(choice) for choice in choices]
        closed = row["category"] not in ("open", "instruction following") and len(texts) > 1
        same, right = [text.strip().lower() for text in texts], str(row["answer"])
        known = closed and right.strip().lower() in same
        letters = string.ascii_uppercase
        lettered = zip(letters, texts, strict=False)
        return {
            **row,
            "clips": [*row["audio_path"]],
            "closed": "yes" if closed else "no",
            "texts": texts if known else None,
            "letter": letters[same.index(right.strip().lower())] if known else None,
            "unlisted": None if known else right,
            "judged_by": None if known else ["exact"],
            "listed": "\n".join(f"{letter}. {text}" for letter, text in lettered),
        }
