"""MotionBench: fine-grained motion in videos of seconds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict

_OPTION = re.compile(r"(?:^|\n)\s*([A-F])[.):]\s*(.*?)\s*(?=\n\s*[A-F][.):]\s|$)", re.DOTALL)


@dataclass(frozen=True)
class Motionbench(Benchmark):
    """MotionBench's questions with published answers, its DEV set; those of the TEST set are `NA`.

    The published file has one question a line; lmms-eval asks it with blanks as one and its options one a
    line. Put the videos of both folders of the data, and those that you cut, into one folder `videos`.

    Source: Hong et al. 2025, arXiv 2501.02955; lmms-eval tasks/motionbench (motionbench_full).
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/zai-org/MotionBench"
    licence: ClassVar[str] = "CC-BY-NC-SA-4.0, academic research only"
    hub: ClassVar[str] = "zai-org/MotionBench"
    checked: ClassVar[str] = (
        "licence, and 8,052 questions: THUDM/MotionBench at dcc9b07; files: hub file list; columns and "
        "lines: lmms-eval and other readers; 2026-11"
    )
    count: ClassVar[int] = 8052
    files: ClassVar[tuple[str, ...]] = ("MotionBench/video_info.meta.jsonl",)
    only: ClassVar[Mapping[str, str]] = {"answered": "True"}
    each: ClassVar[str] = "qa"
    columns: ClassVar[Mapping[str, str]] = {
        "id": "uid",
        "video": "file",
        "question": "asked",
        "options": "texts",
        "choice": "letter",
    }
    cluster: ClassVar[str] = "key"
    groups: ClassVar[tuple[str, ...]] = ("question_type",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}\nAnswer with only the option letter (A, B, C, D, E, or F).",
            max_tokens=64,
            scorer="letter_motion",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the question without line breaks, its options, and whether lmms-eval asks it at all."""
        whole, letter = row["qa"]["question"].strip(), str(row["qa"]["answer"]).strip().upper()
        matches = [*_OPTION.finditer(whole)]
        options = [(match[1], _joined(match[2])) for match in matches if match[2].strip()]
        stem = _joined(whole[: matches[0].start()] if matches else whole) or _joined(whole)
        letters = "".join(mark for mark, _ in options)
        return {
            **row,
            "uid": str(row["qa"]["uid"]),
            "file": f"videos/{row['video_path']}",
            "asked": "\n".join([stem, *(f"{mark}. {text}" for mark, text in options)]),
            "texts": [text for _, text in options] if "ABCDEF".startswith(letters) else None,
            "letter": letter,
            "answered": len(letter) == 1 and letter in letters,
        }


def _joined(text: str) -> str:
    return " ".join(text.split())
