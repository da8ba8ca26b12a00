"""QVHighlights: the moments of its test split, whose truth was published later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarks.qvhighlights import Qvhighlights


@dataclass(frozen=True)
class QvhighlightsTest(Qvhighlights):
    """QVHighlights's test split, scored as its validation split.

    Source: arXiv 2107.09609; moment_detr standalone_eval.
    """

    checked: ClassVar[str] = (
        "count, columns and licence: counted in data/highlight_test_with_gt.jsonl at b7e553a; 2026-11; "
        "folder of the videos not"
    )
    split: ClassVar[str] = "test"
    count: ClassVar[int] = 1542
    files: ClassVar[tuple[str, ...]] = ("data/highlight_test_with_gt.jsonl",)
