"""RoboSpatial-Home: yes or no about space in homes, and points in free space."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.rows import mask_of

_INSTRUCTIONS = (
    "Your answer should be formatted as a list of tuples, i.e. [(x1, y1), ...], where each tuple contains "
    "the x and y coordinates of a point satisfying the conditions above. The coordinates should be between "
    "0 and 1, indicating the normalized pixel locations of the points.",
    "Answer yes or no.",
)
_LAST = "\n\n    Do not include additional text after this line.\n    "
_POINTS = (
    "Your task is to identify specific points in the image based on the question. Respond with a brief "
    "explanation if needed, followed by a list of 2D point coordinates.\n\n    The points should be in JSON "
    "format and normalized to the range [0, 1000]." + _LAST
)
_WORD = (
    "Your task is to answer the question above. Respond with a brief explanation if needed, followed by a "
    "yes or no answer in the last line of your response.\n\n    Format your final answer strictly as follows "
    "on the last line of your response:\n    Answer: yes or no" + _LAST
)
_JSON = (
    "\n\nOutput the point coordinates in JSON format.\nFor example:\n[\n"
    '  {"point_2d": [x, y], "label": "point_1"}\n]\n'
)
_CATEGORIES = ("mean_of_groups by category",)


@dataclass(frozen=True)
class RoboSpatial(Benchmark):
    """RoboSpatial-Home's 350 questions: compatibility and configuration, which are yes or no, and context.

    Context asks for points; its own code and VLMEvalKit take the first, in a polygon, lmms-eval any one
    in the mask. Its leaderboard prints the mean of the three categories. VLMEvalKit counts an upright
    edge of a polygon wherever the point is, so that no point is in a box. lmms-eval states a limit of
    tokens for context alone. Strict: one word, or one point in the mask, in the space that the model has.

    Source: Song et al. 2024, arXiv 2411.16537; RoboSpatial-Eval evaluation.py, lmms-eval
    tasks/robo_spatial (task robo_spatial_all), VLMEvalKit RoboSpatialHome.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/chanhee-luke/RoboSpatial-Home"
    licence: ClassVar[str] = "Apache-2.0"
    hub: ClassVar[str] = "chanhee-luke/RoboSpatial-Home"
    checked: ClassVar[str] = (
        "counts and licence: hub card and viewer; columns and files: lmms-eval and RoboSpatial-Eval; 2026-11"
    )
    split: ClassVar[str] = "test"
    count: ClassVar[int] = 350
    files: ClassVar[tuple[str, ...]] = (
        "data/compatibility-00000-of-00001.parquet",
        "data/configuration-00000-of-00001.parquet",
        "data/context-00000-of-00001.parquet",
    )
    columns: ClassVar[Mapping[str, str]] = {
        "image": "img",
        "question": "plain",
        "answer": "word",
        "masks": "region",
        "rewards": "judged_by",
    }
    box_space: ClassVar[str] = "norm1"
    groups: ClassVar[tuple[str, ...]] = ("category",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}\n{instruction}",
            max_tokens=512,
            scorer="robospatial_lmms",
            also=_CATEGORIES,
        ),
        Official(
            "robospatial@19f04a5",
            ask="{asked}",
            max_tokens=128,
            scorer="robospatial",
            unit="percent",
            also=_CATEGORIES,
        ),
        Official(
            "vlmevalkit@e8e78f0",
            ask="{asked_for_json}",
            max_tokens=2048,
            scorer="robospatial_vlmeval",
            unit="percent",
            also=_CATEGORIES,
        ),
    )
    strict: ClassVar[Strict] = Strict("yes_no", {}, also=_CATEGORIES)

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the question without its instructions, and what answers it: a word, or mask and polygon."""
        asked, answer = str(row["question"]), str(row["answer"]).strip()
        plain = asked
        for instruction in _INSTRUCTIONS:
            plain = plain.replace(instruction, "").strip()
        common = {**row, "asked": asked, "plain": plain}
        if answer.lower() in ("yes", "no"):
            word = {"word": answer.lower(), "region": None, "judged_by": None}
            return {**common, **word, "instruction": _WORD, "asked_for_json": asked}
        return {
            **common,
            "word": None,
            "region": [mask_of(row, "mask")],
            "judged_by": [{"verifier": "point", "options": {"binary": True}}],
            "instruction": _POINTS,
            "asked_for_json": asked.partition("Your answer should")[0].strip() + _JSON,
            "polygon": answer.replace("(", "[").replace(")", "]"),
        }
