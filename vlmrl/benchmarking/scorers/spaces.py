"""Official scorers of questions about space, and about several images of it."""

from __future__ import annotations

import json
import re

from pycocotools import mask as coco

from vlmrl.answers import masks
from vlmrl.benchmark_rules import letters, places, spaces
from vlmrl.benchmark_rules.letters import Said
from vlmrl.benchmark_rules.places import XY
from vlmrl.benchmarking.scores import (
    Score,
    Scorer,
    accepted_texts,
    letter_scorer,
    right_letter,
    texts,
    word_score,
)
from vlmrl.schema import Frame, Sample


def _muirbench(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score MuirBench as lmms-eval does: the letter before a full stop, or the whole answer."""
    reading = letters.option_start(answer).lower().strip()
    return word_score(reading, right_letter(sample).lower())


def _marked_texts(sample: Sample) -> dict[str, str]:
    """Return MuirBench's options as published: the marks of their images have no numbers there."""
    return {
        letter: re.sub(r"<image \d+>", "<image>", text) for letter, text in texts(sample).items()
    }


def _omnispatial(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score OmniSpatial as lmms-eval does when it asks for a chain of thought: A where none is read."""
    letter = spaces.last_answer_letter(answer)
    return Score(float((letter or "A") == right_letter(sample)), letter is not None, letter or "")


def _word(word: Said | None, sample: Sample) -> Score:
    return word_score(word, accepted_texts(sample)[0])


def _polygon(sample: Sample) -> list[XY]:
    return [(float(x), float(y)) for x, y in json.loads(str(sample.meta["polygon"]))]


def _robospatial_lmms(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score RoboSpatial-Home as lmms-eval does: any point in the mask, on the mask's own pixels."""
    reply = spaces.after_thought(answer)
    if not sample.truth.masks:
        return _word(spaces.yes_no_last_line(reply), sample)
    mask = sample.truth.masks[0]
    height, width = masks.raster_size([mask], frame)
    points = spaces.thousandth_points(reply, width, height)
    filled = coco.decode(masks.encoded(mask, (height, width)))
    return Score(float(places.share_in_mask(points, filled) > 0), bool(points))


def _robospatial(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score RoboSpatial-Home by its own code: the first point, in the polygon."""
    if not sample.truth.masks:
        return _word(spaces.yes_no_start(answer), sample)
    point = spaces.first_unit_point(answer)
    inside = point is not None and spaces.in_polygon(point, _polygon(sample))
    return Score(float(inside), point is not None)


def _robospatial_vlmeval(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score RoboSpatial-Home as VLMEvalKit does: the first point in any of three spaces, in the polygon."""
    if not sample.truth.masks:
        return _word(spaces.yes_no_start(answer), sample)
    point = spaces.first_scaled_point(answer, frame.width or 1, frame.height or 1)
    inside = point is not None and spaces.in_polygon_vlmeval(point, _polygon(sample))
    return Score(float(inside), point is not None)


SCORERS: dict[str, Scorer] = {
    "letter_muirbench": _muirbench,
    "letter_muirbench_vlmeval": letter_scorer(
        lambda a, s: letters.vlmeval_letter(a, _marked_texts(s))
    ),
    "letter_mmsi": letter_scorer(lambda a, s: spaces.mmsi_letter(a)),
    "letter_mindcube": letter_scorer(lambda a, s: spaces.mindcube_letter(a)),
    "letter_dsr": letter_scorer(lambda a, s: spaces.dsr_letter(a)),
    "letter_first_capital": letter_scorer(lambda a, s: spaces.first_capital(a)),
    "letter_omnispatial": _omnispatial,
    "letter_spatial_vlmeval": letter_scorer(lambda a, s: spaces.spatial_letter(a)),
    "robospatial_lmms": _robospatial_lmms,
    "robospatial": _robospatial,
    "robospatial_vlmeval": _robospatial_vlmeval,
}
