"""Measure how well an object is followed through a video."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from vlmrl import schema
from vlmrl.answers import geometry, parsing
from vlmrl.schema import Box, Completion, Truth, Verdict
from vlmrl.scoring.verifier import AnswerVerifier, Laws


@dataclass(frozen=True)
class Track(AnswerVerifier):
    """Mean IoU over the times of the true track; a time without a box counts 0. In [0, 1].

    Boxes with a time are paired with the true times in order, at most `tolerance` seconds away;
    boxes without are paired by their place in the list. The sum of IoU is divided by max(N, P), so
    that additional boxes cost.

    Published sets: VideoChat-R1: boxes without times, eight of them (it scores 0 for any other
    number).

    Refuses: nan, infinities, several boxes for one time (all but the first count as additional).

    Source: VideoChat-R1, arXiv 2504.06958; GOT-10k's average overlap, arXiv 1810.11981.

    Example:
    >>> from vlmrl.schema import BoxTrack
    >>> from vlmrl.scoring.verifier import judge
    >>> truth = Truth(track=BoxTrack((0.0, 1.0), (Box(0, 0, 0.5, 0.5), Box(0, 0, 0.5, 0.5))))
    >>> judge(Track(), "[[0, 0, 50, 50], [50, 50, 90, 90]]", truth).score
    0.5
    """

    needs: ClassVar[tuple[str, ...]] = ("track",)
    laws: ClassVar[Laws] = Laws(junk="[ITEMS, ITEMS]")

    tolerance: float = 0.05
    """Seconds by which a stated time may miss a true one."""

    def grade(self, answer: str, truth: Truth, completion: Completion) -> Verdict:
        """Pair by time, else by place, and average."""
        assert truth.track is not None
        times, right = truth.track.times, truth.track.boxes
        track, note = parsing.track(answer, completion.frame)
        if not track:
            return Verdict(0.0, note=note)
        if all(time is None for time, _ in track):
            paired = [box for _, box in track[: len(right)]]
        else:
            timed = [(time, box) for time, box in track if time is not None]
            paired = [self._at(time, timed) for time in times]
        overlaps = [
            geometry.iou(b, r) for b, r in zip(paired, right, strict=False) if b is not None
        ]
        score = math.fsum(overlaps) / max(len(track), len(right))
        return Verdict(score, answer=_track(times, paired), note=note)

    def _at(self, time: float, timed: list[tuple[float, Box | None]]) -> Box | None:
        """Return the first box within tolerance of a time."""
        return next((box for t, box in timed if abs(t - time) <= self.tolerance), None)


def _track(times: tuple[float, ...], boxes: list[Box | None]) -> schema.BoxTrack | None:
    """Return the boxes that were read, at the times of the true ones they are paired with."""
    known = [(t, b) for t, b in zip(times, boxes, strict=False) if b is not None]
    return (
        schema.BoxTrack(tuple(t for t, _ in known), tuple(b for _, b in known)) if known else None
    )
