"""Official scorers of clicks and actions on screens."""

from __future__ import annotations

import json
from collections.abc import Mapping

from vlmrl.benchmark_rules import letters, screens
from vlmrl.benchmark_rules.places import XY
from vlmrl.benchmarking.scores import Score, Scorer, letter_scorer, point_scorer
from vlmrl.schema import Frame, Sample


def _size(sample: Sample) -> XY:
    width, height = sample.meta["size"]
    return float(width), float(height)


def _osworld(answer: str, sample: Sample, frame: Frame) -> Score:
    target = json.loads(str(sample.meta["target"]))
    hit = screens.osworld_hit(answer, str(sample.meta["kind"]), target, _size(sample))
    return Score(float(bool(hit)), hit is not None)


def _step_score(step: Mapping[str, bool] | None) -> Score:
    if step is None:
        return Score(0.0, read=False, detail={"type": 0.0})
    return Score(float(step["step"]), detail={part: float(right) for part, right in step.items()})


def _os_atlas(answer: str, sample: Sample, frame: Frame) -> Score:
    return _step_score(screens.os_atlas_step(answer, str(sample.meta["right"])))


def _odyssey(answer: str, sample: Sample, frame: Frame) -> Score:
    box = json.loads(str(sample.meta["target"]))
    return _step_score(screens.odyssey_step(answer, str(sample.meta["right"]), box))


def _coat(answer: str, sample: Sample, frame: Frame) -> Score:
    width, height = _size(sample)
    right = screens.PhoneAction(
        str(sample.meta["kind"]),
        str(sample.meta["info"]),
        json.loads(str(sample.meta["target"])),
        (int(width), int(height)),
    )
    return _step_score(screens.coat_step(answer, right))


SCORERS: dict[str, Scorer] = {
    "letter_mmbench_gui": letter_scorer(lambda a, s: letters.mmbench_gui_letter(a)),
    "click_osworld": _osworld,
    "click_mmbench_gui": point_scorer(lambda a, s: screens.mmbench_gui_point(a, _size(s))),
    "click_ui_vision": point_scorer(lambda a, s: screens.ui_vision_point(a)),
    "step_os_atlas": _os_atlas,
    "step_odyssey": _odyssey,
    "step_coat": _coat,
}
