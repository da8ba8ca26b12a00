"""Decide whether a thought names places of the image."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Literal

from vlmrl.answers import geometry
from vlmrl.schema import Completion, Frame, Sample, Verdict
from vlmrl.scoring.verifier import Laws, Verifier

_NUMBER = r"(\d{1,6}(?:\.\d{1,6})?)"
_COMMA = r"\s{0,4},\s{0,4}"
_BOX = re.compile(rf"(?<![\d.]){_COMMA.join([_NUMBER] * 4)}(?![\d.]*\d)")
_POINT = re.compile(rf"\(\s{{0,4}}{_NUMBER}{_COMMA}{_NUMBER}\s{{0,4}}\)")


@dataclass(frozen=True)
class GroundedThought(Verifier):
    """Score 1 if the thought names at least `least` different places of the image, else 0.

    `boxes` are four numbers parted by commas, in any brackets or none; `points` are `(x, y)`. They are in
    the space in which answers are written. One without area or outside the image is none, and one that is
    named twice is one. `count`: as many as the true number, where there is one; else it does not apply.

    Published sets: GRIT: the defaults with half a point, and `count: true` with a whole one for its
    questions of how many; ViGoRL: `kind: points` under its format.

    Refuses: no thought, places in the answer alone, the same place again and again.

    Source: GRIT, arXiv 2505.15879, section 3.2, and its code (rewards.py at 44699c9); ViGoRL, arXiv
    2505.23678, and its code (coordinate_reward at e7970c0). Differs: both take any numbers of the form,
    inside the image or not, and GRIT counts a box as often as it is named.

    Example:
    >>> from vlmrl.schema import Truth
    >>> from vlmrl.scoring.verifier import judge
    >>> judge(GroundedThought(), "<think>at [5, 5, 20, 20]</think><answer>A</answer>", Truth(),
    ...       "think_answer").score
    1.0
    """

    laws: ClassVar[Laws] = Laws(
        best="<think>It is at [10, 10, 40, 40], by (20, 20).</think><answer>7</answer>",
        junk="ANSWER [1, 2, 3, 4]",
        options=({}, {"kind": "points"}),
        template="think_answer",
    )

    kind: Literal["boxes", "points"] = "boxes"
    """What the thought is to name."""
    least: int = 1
    """Different places that suffice."""
    count: bool = False
    """Whether there must be exactly as many as the true number says."""

    def __post_init__(self) -> None:
        if self.least < 1:
            raise ValueError(f"least: expected a number of at least 1, got {self.least}")

    @property
    def reads_truth(self) -> bool:
        """Whether the true number counts."""
        return self.count

    def __call__(self, completion: Completion, sample: Sample) -> Verdict:
        """Count the places in the thought of one completion."""
        wanted = sample.truth.number
        if self.count and wanted is None:
            return Verdict.not_applicable("the truth has no number")
        thought = completion.parsed.thought
        if thought is None:
            return Verdict(0.0, note="no thought")
        places = len(_places(thought, self.kind, completion.frame))
        right = places == wanted if self.count else places >= self.least
        note = "" if right else f"the thought names {places} different {self.kind}"
        return Verdict(float(right), {"places": float(places)}, note=note)


def _places(thought: str, kind: Literal["boxes", "points"], frame: Frame) -> set[tuple[float, ...]]:
    """Return the different places of the image that a text names, as numbers in the frame's space."""
    pattern = _BOX if kind == "boxes" else _POINT
    named = {tuple(map(float, match)) for match in pattern.findall(thought)}
    if kind == "points":
        return {(x, y) for x, y in named if geometry.point(x, y, frame)}
    return {box for box in named if _has_area(box, frame)}


def _has_area(box: tuple[float, ...], frame: Frame) -> bool:
    x1, y1, x2, y2 = box
    return (
        x1 < x2
        and y1 < y2
        and geometry.clean_box(*geometry.to_unit(x1, y1, x2, y2, frame)) is not None
    )
