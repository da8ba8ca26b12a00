"""Where2Place: point into free space that a sentence describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarking.base import Official
from vlmrl.benchmarks.refspatial import Refspatial


@dataclass(frozen=True)
class Where2place(Refspatial):
    """Where2Place's 100 questions: the share of the points that lie in the mask.

    One safe point is worth as much as ten right ones. Strict: one point, in it.

    Source: Yuan et al. 2024, RoboPoint, arXiv 2406.10721; lmms-eval tasks/where2place.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/FlagEval/Where2Place"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "FlagEval/Where2Place"
    checked: ClassVar[str] = "columns and prompt: lmms-eval, 2026-11; count and licence: unchecked"
    split: ClassVar[str] = "test"
    count: ClassVar[int] = 100
    splits: ClassVar[Mapping[str, int]] = {}
    columns: ClassVar[Mapping[str, str]] = {
        "id": "question_id", "image": "image", "question": "question", "masks": "region",
    }  # fmt: skip
    groups: ClassVar[tuple[str, ...]] = ()
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question} Your answer should be formatted as a list of tuples, i.e. [(x1, y1), "
            "(x2, y2), ...], where each tuple contains the x and y coordinates of a point "
            "satisfying the conditions above. The coordinates should be between 0 and 1, indicating "
            "the normalized pixel locations of the points in the image. Return only list of tuples, "
            "don't add anything else.",
            max_tokens=1024,
            scorer="points_in_mask",
        ),
    )
