"""The official scorers: what a harness gives for one answer, by name.

Each takes the answer's text and the sample, and returns a `Score`. The reading of the text is a rule
of `vlmrl.answers.benchmark_rules`, which are compared with the harnesses' own code.
"""

from __future__ import annotations

import string
from collections.abc import Callable

from vlmrl.answers.benchmark_rules import counts, free_text, letters, places, spans, yes_no
from vlmrl.benchmarking.scorers.found_boxes import listed_boxes, odinw_row
from vlmrl.benchmarking.scorers.scores import (
    Score,
    Scorer,
    accepted_texts,
    letter_scorer,
    option_letters,
    right_letter,
    texts,
)
from vlmrl.benchmarking.scorers.task_scorers import TASK_SCORERS
from vlmrl.benchmarking.scorers.video_scorers import VIDEO_SCORERS
from vlmrl.schema import Frame, Sample

__all__ = ["SCORERS"]


def _letter_start(answer: str, sample: Sample, frame: Frame) -> Score:
    """Compare as the metric exact_match of lmms-eval does without case and punctuation."""
    bare = str.maketrans("", "", string.punctuation)
    said = letters.option_start(answer).lower().translate(bare)
    return Score(float(said == right_letter(sample).lower()), bool(said), said)


def _yes_no(read: Callable[[str], yes_no.Said | None]) -> Scorer:
    """Make a scorer of a rule that reads yes or no."""

    def score(answer: str, sample: Sample, frame: Frame) -> Score:
        said = read(answer)
        right = accepted_texts(sample)[0].strip().lower().rstrip(".")
        return Score(float(said == right), said is not None, said or "")

    return score


def _text(rule: Callable[[str, tuple[str, ...]], float]) -> Scorer:
    """Make a scorer of a rule that compares with the accepted texts."""
    return lambda answer, sample, frame: Score(float(rule(answer, accepted_texts(sample))))


def _relaxed(answer: str, accepted: tuple[str, ...], harness: free_text.Harness) -> bool:
    return any(free_text.relaxed(answer, right, harness) for right in accepted)


def _real_world(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score as lmms-eval does for RealWorldQA: a letter where the truth is one, else equal text."""
    right = accepted_texts(sample)[0].strip()
    if right.upper() in ("A", "B", "C", "D"):
        said = letters.lmms_letter(answer, "ABCD")
        return Score(float(said == right.upper()), said is not None, said or "", 0.25)
    said = answer.lower().strip().rstrip(".")
    return Score(float(said == right.lower()), bool(said), said)


def _ocrbench(answer: str, sample: Sample, frame: Frame) -> Score:
    formula = sample.meta.get("dataset") == "HME100k"
    return Score(float(free_text.ocrbench(answer, accepted_texts(sample), "lmms_eval", formula)))


def _box(harness: places.Harness) -> Scorer:
    """Make a scorer of Acc@0.5 of the first box."""

    def score(answer: str, sample: Sample, frame: Frame) -> Score:
        assert sample.truth.boxes
        found = places.refcoco_box(answer, frame, harness)
        overlap = places.raw_iou(found or (0.0, 0.0, 0.0, 0.0), sample.truth.boxes[0].xyxy)
        return Score(float(overlap >= 0.5), found is not None)

    return score


def _click(harness: places.Harness) -> Scorer:
    """Make a scorer of a click in the box."""

    def score(answer: str, sample: Sample, frame: Frame) -> Score:
        assert sample.truth.boxes
        return Score(float(places.screenspot_hit(answer, sample.truth.boxes[0], frame, harness)))

    return score


def _span(answer: str, sample: Sample, frame: Frame) -> Score:
    assert sample.truth.spans
    found = spans.charades_span(answer)
    return Score(spans.hull_iou(found, sample.truth.spans[0]) if found else 0.0, found is not None)


def _boxes_odinw(answer: str, sample: Sample, frame: Frame) -> Score:
    detail, share = odinw_row(answer, sample, frame)
    return Score(share, bool(detail.found_labels), detail=detail)


def _boxes_listed(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score with the F1 at IoU 0.5 of one image; COCOeval and LVISEval rank the boxes of all."""
    detail = listed_boxes(answer, sample, frame)
    hits, found, right = detail.hits_found_right()
    value = 2 * hits / (found + right) if found + right else 1.0
    return Score(value, bool(detail.found_labels), detail=detail)


SCORERS: dict[str, Scorer] = {
    "letter_lmms": letter_scorer(lambda a, s: letters.lmms_letter(a, option_letters(s))),
    "letter_mmmu": letter_scorer(lambda a, s: letters.mmmu_letter(a, texts(s))),
    "letter_vlmeval": letter_scorer(lambda a, s: letters.vlmeval_letter(a, texts(s))),
    "letter_blink": letter_scorer(lambda a, s: letters.blink_letter(a, option_letters(s))),
    "letter_cv_bench": letter_scorer(lambda a, s: letters.cv_bench_letter(a)),
    "letter_vstar": letter_scorer(lambda a, s: letters.vstar_letter(a)),
    "letter_first": letter_scorer(lambda a, s: letters.first_letter(a)),
    "letter_start": _letter_start,
    "real_world": _real_world,
    "yes_no_exact": _yes_no(yes_no.yes_no_exact),
    "yes_no_prefix": _yes_no(yes_no.yes_no_prefix),
    "yes_no_words": _yes_no(yes_no.yes_no_words),
    "anls": _text(free_text.anls),
    "relaxed_lmms": _text(lambda a, right: _relaxed(a, right, "lmms_eval")),
    "relaxed_vlmeval": _text(lambda a, right: _relaxed(a, right, "vlmevalkit")),
    "vqa_lmms": _text(lambda a, right: free_text.vqa_accuracy(a, right, "lmms_eval")),
    "vqa_vlmeval": _text(lambda a, right: free_text.vqa_accuracy(a, right, "vlmevalkit")),
    "substring": _text(free_text.substring),
    "ocrbench_lmms": _ocrbench,
    "count_word": _text(lambda a, right: counts.count_word(a, right[0])),
    "count_first": _text(lambda a, right: counts.count_first(a, right[0])),
    "box_lmms": _box("lmms_eval"),
    "box_vlmeval": _box("vlmevalkit"),
    "click_lmms": _click("lmms_eval"),
    "click_vlmeval": _click("vlmevalkit"),
    "span_iou": _span,
    "boxes_odinw": _boxes_odinw,
    "boxes_listed": _boxes_listed,
    **TASK_SCORERS,
    **VIDEO_SCORERS,
}
"""Official scorers by name."""
