"""The official scorers: what a harness gives for one answer, by name.

Each takes the answer's text and the sample, and returns a `Score`. The reading of the text is a rule
of `vlmrl.benchmark_rules`, which are compared with the harnesses' own code.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from pycocotools import mask as coco

from vlmrl.answers import geometry, masks, parsing, text
from vlmrl.benchmark_rules import (
    detections,
    letters,
    mathematics,
    numbers,
    places,
    spans,
    words,
)
from vlmrl.benchmark_rules.detections import Labelled
from vlmrl.benchmarking.aggregates import Detections
from vlmrl.errors import import_extra
from vlmrl.schema import Frame, Sample, Span

# --------------------------------------------------------------------------------------------------
# From an answer and a sample to what an aggregate of boxes needs: what was found, and what is there.


def listed_boxes(answer: str, sample: Sample, frame: Frame) -> Detections:
    """Return the boxes that an answer lists, read as our verifiers do, and the sample's.

    A box without a label is of the one class that is asked for, else of none. `sample.meta` may hold
    as JSON: `categories` (the classes asked for), `crowds` (boxes xyxy in pixels with labels, as
    [[box, label], ...]), `verified` and `partial` (lists of classes: see `Detections`).
    """
    size = np.array([frame.width or 1, frame.height or 1] * 2, dtype=np.float64)
    stated, _ = parsing.boxes(answer, frame) if answer else ([], "")
    asked = [text.label(name) for name in _said(sample, "categories", [])]
    only = asked[0] if len(asked) == 1 else ""
    right = sample.truth.boxes or ()
    crowds = _said(sample, "crowds", [])
    regions = np.array([box for box, _ in crowds], float).reshape(-1, 4)
    verified = _said(sample, "verified", None)
    # Whole pixels then give the very IoU of COCOeval.
    boxes, truths = (np.round(geometry.array(some) * size, 9) for some in (stated, right))
    return Detections(
        boxes.reshape(-1, 4),
        tuple(text.label(each.label) or only for each in stated),
        tuple(each.score or 0.0 for each in stated),
        np.concatenate([truths.reshape(-1, 4), regions]),
        tuple(
            [text.label(each.label) for each in right] + [text.label(name) for _, name in crowds]
        ),
        (False,) * len(right) + (True,) * len(crowds),
        None if verified is None else frozenset(map(text.label, verified)),
        frozenset(map(text.label, _said(sample, "partial", []))),
    )


def odinw_row(answer: str, sample: Sample, frame: Frame) -> tuple[Detections, float]:
    """Return what lmms-eval makes of an answer to ODinW-13, and the share of truths it finds (ACC@0.5)."""
    width, height = frame.width or 1, frame.height or 1
    size = np.array([width, height] * 2, dtype=np.float64)
    right = sample.truth.boxes or ()
    true = np.round(geometry.array(right) * size, 9).reshape(-1, 4)
    labels = [(box.label or "").strip().lower() for box in right]
    truths: list[Labelled] = [
        ((a, b, c, d), name) for (a, b, c, d), name in zip(true.tolist(), labels, strict=True)
    ]
    stated = detections.odinw_boxes(answer, truths, width, height)
    overlaps = detections.odinw_found(stated, truths)
    image = Detections(
        np.array([box for box, _ in stated], float).reshape(-1, 4),
        tuple(name for _, name in stated),
        (1.0,) * len(stated),
        true,
        tuple(labels),
        (False,) * len(labels),
    )
    return image, sum(overlap >= 0.5 for overlap in overlaps) / len(overlaps) if overlaps else 0.0


def _said(sample: Sample, key: str, otherwise: object) -> Any:
    value = sample.meta.get(key)
    return json.loads(value) if isinstance(value, str) and value else otherwise


# --------------------------------------------------------------------------------------------------
# What a harness gives for one answer, and what scorers read of a sample.


@dataclass(frozen=True, slots=True)
class Score:
    """What a harness gives for one answer, in [0, 1], and whether its rule found an answer at all.

    `value` is None where the harness leaves the answer out of its number, denominator included; `reading`
    is what the rule read, for aggregates that count words; `chance` is that of a guess among the
    options, 0 where there are none; `detail` is what an aggregate needs besides.
    """

    value: float | None
    read: bool = True
    reading: str = ""
    chance: float = 0.0
    detail: Any = None


Scorer = Callable[[str, Sample, Frame], Score]


def option_letters(sample: Sample) -> list[str]:
    """Return the letters on offer: A to D where the question itself lists the options."""
    count = len(sample.truth.options or ()) or 4
    return list(string.ascii_uppercase[:count])


def right_letter(sample: Sample) -> str:
    """Return the letter of the right option."""
    choice, options = str(sample.truth.choice), sample.truth.options or ()
    is_text = choice in options and choice not in option_letters(sample)
    return string.ascii_uppercase[options.index(choice)] if is_text else choice.upper()


def texts(sample: Sample) -> dict[str, str]:
    """Return the texts of the options by letter."""
    return dict(zip(string.ascii_uppercase, sample.truth.options or (), strict=False))


def _word(reading: str | None, right: str, chance: float = 0.0) -> Score:
    """Score a word that has to be the right one; an empty one counts as unread."""
    return Score(float(reading == right), bool(reading), reading or "", chance)


def _letter(find: Callable[[str, Sample], str | None]) -> Scorer:
    return lambda answer, sample, _: _word(
        find(answer, sample), right_letter(sample), 1 / len(option_letters(sample))
    )


def accepted_texts(sample: Sample) -> tuple[str, ...]:
    """Return the accepted texts: the text, the number or the option."""
    truth = sample.truth
    if truth.text is not None:
        return truth.text
    if truth.number is not None:
        whole = float(truth.number).is_integer()
        return (str(int(truth.number)) if whole else str(truth.number),)
    return (str(truth.choice),)


# --------------------------------------------------------------------------------------------------
# Official scorers of tasks about videos and audio.


def _mvbench(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score MVBench's letter; an empty answer is left out of the number."""
    reading = letters.mvbench_word(answer)
    right = letters.mvbench_word(right_letter(sample))
    return Score(float(reading == right) if answer else None, bool(answer), reading)


def _vsi(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score VSI-Bench: the first word of a choice, less its full stops; else the first number."""
    if sample.truth.options:
        reading = answer.split(" ")[0].rstrip(".").strip()
        return Score(float(reading.lower() == right_letter(sample).lower()), bool(reading), reading)
    number = numbers.vsi_number(answer)
    assert sample.truth.number is not None
    if number is None:
        return Score(0.0, read=False)
    return Score(numbers.vsi_mean_relative_accuracy(number, sample.truth.number))


def _r1(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score as Video-R1: the letter verbatim, or the mean relative accuracy of a number."""
    reading = (spans.tagged(answer, "answer") or "").strip() or answer.strip()
    truth = sample.truth
    if truth.number is None or truth.options:
        return Score(float(reading == right_letter(sample)), reading=reading)
    number = numbers.r1_number(reading)
    if number is None:
        return Score(0.0, read=False)
    return Score(numbers.r1_mean_relative_accuracy(number, truth.number))


def _omni(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score as HumanOmniV2: the F1 of letters, yes or no, or the letter verbatim."""
    reading, truth = (spans.tagged(answer, "answer") or "").strip() or answer, sample.truth
    if truth.labels:
        return Score(words.omni_letters_f1(reading, ",".join(truth.labels)), reading=reading)
    if truth.options:
        return Score(float(reading.strip() == right_letter(sample)), reading=reading)
    return Score(float(words.omni_judged(reading, accepted_texts(sample)[0])), reading=reading)


def _judged(rule: Callable[[str, Sample], bool | None]) -> Scorer:
    """Make a scorer of a rule that leaves what it cannot read to a judge."""

    def score(answer: str, sample: Sample, frame: Frame) -> Score:
        right = rule(answer, sample)
        return Score(float(bool(right)), right is not None)

    return score


def _tempcompass_choice(answer: str, sample: Sample) -> bool | None:
    letter = right_letter(sample)
    return words.tempcompass_choice(answer, f"{letter}. {texts(sample)[letter]}")


def _tempcompass_matching(answer: str, sample: Sample) -> bool | None:
    lines, right = str(sample.meta["question"]).split("\n")[1:], str(sample.meta["answer"])
    return words.tempcompass_matching(answer, right, lines)


def _mmvu(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score what lmms-eval's rule reads of MMVU; open answers that it calls wrong go to a judge."""
    if sample.truth.options:
        return Score(float(words.mmvu_choice(answer, right_letter(sample), texts(sample))))
    right = words.mmvu_open(answer, accepted_texts(sample)[0])
    return Score(float(right), read=right)


def _video_mmmu(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score Video-MMMU; an open answer that is empty is left out of the number."""
    if sample.truth.options:
        letter = letters.lmms_letter(answer, option_letters(sample))
        return _word(letter, right_letter(sample))
    right = words.video_mmmu_open(answer, accepted_texts(sample)[0])
    return Score(float(right) if answer else None, bool(answer))


def _mmau(read: Callable[[str], str]) -> Scorer:
    """Make a scorer of MMAU's own match of words."""

    def score(answer: str, sample: Sample, frame: Frame) -> Score:
        reading, options = read(answer), texts(sample)
        right = words.mmau_match(reading, options[right_letter(sample)], [*options.values()])
        return Score(float(right), bool(reading), reading)

    return score


def _first_span(
    read: Callable[[str], Span | None], overlap: Callable[[Span, Span], float]
) -> Scorer:
    """Make a scorer of a rule that reads one span."""

    def score(answer: str, sample: Sample, frame: Frame) -> Score:
        assert sample.truth.spans
        span = read(answer)
        return Score(overlap(span, sample.truth.spans[0]) if span else 0.0, span is not None)

    return score


def _letter_and_spans(answer: str, sample: Sample) -> tuple[bool, list[Span] | None]:
    """Return whether VideoChat-R1 reads the right letter, and the spans that it reads."""
    option, glue = spans.tagged(answer, "answer"), spans.tagged(answer, "glue")
    right = option is not None and letters.videochat_letter(option) == right_letter(sample)
    return right, None if glue is None else spans.glue_spans(glue)


def _videochat_gqa(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score VideoChat-R1's grounded questions: the letter; the IoU is a part."""
    right, stated = _letter_and_spans(answer, sample)
    iou = 0.0 if stated is None else spans.covered_iou(stated, sample.truth.spans or ())
    return Score(float(right), stated is not None, detail={"choice": float(right), "iou": iou})


def _next_gqa(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score NExT-GQA: the right letter and an IoP from 0.5 on; of several spans the hull is taken."""
    right, stated = _letter_and_spans(answer, sample)
    iou = iop = 0.0
    if stated:
        hull = Span(min(span.start for span in stated), max(span.end for span in stated))
        overlaps = [spans.next_gqa_overlap(hull, span) for span in sample.truth.spans or ()]
        iou, iop = (max(0.0, *column) for column in zip(*overlaps, strict=True))
    detail = {"choice": float(right), "iou": iou, "iop": iop}
    return Score(float(right and iop >= 0.5), bool(stated), detail=detail)


# --------------------------------------------------------------------------------------------------
# Official scorers of single tasks.


def _mmmu(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score MMMU: a letter where there are options, else an open answer."""
    if sample.truth.options:
        chance = 1 / len(option_letters(sample))
        return _word(letters.mmmu_letter(answer, texts(sample)), right_letter(sample), chance)
    right = accepted_texts(sample)
    return Score(float(words.mmmu_open(answer, right[0] if len(right) == 1 else right)))


def _four_texts(sample: Sample) -> dict[str, str]:
    """Return MMBench's options: the harness reads the published `nan` of a missing one as its text."""
    return {**dict.fromkeys("ABCD", "nan"), **texts(sample)}


def _science(answer: str, sample: Sample, frame: Frame) -> Score:
    reading = letters.science_letter(answer)
    return Score(float(reading.lower() == right_letter(sample).lower()), bool(reading), reading)


def _naturalbench(answer: str, sample: Sample, frame: Frame) -> Score:
    right = accepted_texts(sample)[0].strip()
    words = ("A", "B") if right in ("A", "B") else ("yes", "no")
    reading = letters.naturalbench_word(answer, words)
    return Score(
        float(reading == (right if right in words else right.lower())), reading is not None
    )


def _mathvista(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score what lmms-eval reads without its judge; the rest is wrong, so this is a lower bound."""
    options, kind = sample.truth.options or (), str(sample.meta["answer_type"])
    reading = words.mathvista_reading(answer, options, kind)
    if reading is None:
        return Score(0.0, read=False)
    right = accepted_texts(sample)[0]
    precision = sample.meta.get("precision") or 0
    assert isinstance(precision, int | float)
    return Score(float(words.mathvista_right(reading, right, options, kind, precision)))


def _mathvision(answer: str, sample: Sample, frame: Frame) -> Score:
    options = texts(sample) if sample.truth.options else {}
    right = right_letter(sample) if options else accepted_texts(sample)[0]
    return Score(float(mathematics.mathvision_right(answer, right, [*options.values()])))


def _number(read: Callable[[str], float | None]) -> Scorer:
    """Make a scorer of a rule that reads a number, which has to be the true one."""

    def score(answer: str, sample: Sample, frame: Frame) -> Score:
        count = read(answer)
        return Score(float(count == sample.truth.number), count is not None)

    return score


def _point(read: Callable[[str, Sample], places.XY | None]) -> Scorer:
    """Make a scorer of a rule that reads a point, which has to lie in the box."""

    def score(answer: str, sample: Sample, frame: Frame) -> Score:
        assert sample.truth.boxes
        box, point = sample.truth.boxes[0], read(answer, sample)
        hit = point and box.x1 <= point[0] <= box.x2 and box.y1 <= point[1] <= box.y2
        return Score(float(bool(hit)), point is not None)

    return score


def _size(sample: Sample) -> places.XY:
    width, height = sample.meta["size"]
    return float(width), float(height)


def _in_mask(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score the share of the points that lie in the mask, on the mask's own pixels."""
    assert sample.truth.masks
    mask = sample.truth.masks[0]
    height, width = masks.raster_size([mask], frame)
    points = places.unit_points(answer, width, height)
    filled = coco.decode(masks.encoded(mask, (height, width)))
    return Score(places.share_in_mask(points, filled), bool(points))


def _corner_pairs(answer: str, sample: Sample, frame: Frame) -> Score:
    assert sample.truth.boxes
    iou = places.corner_pairs_iou(answer, sample.truth.boxes[0].xyxy)
    return Score(iou or 0.0, iou is not None)


def _name_two_way(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score a name; no answer at all is wrong there too, an empty one in tags would be right."""
    right = bool(answer) and words.name_two_way(answer, accepted_texts(sample)[0])
    return Score(float(right), bool(answer))


def _equal_text(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score what a judge is sure to find right: an accepted text to the letter; the rest is unread."""
    right = answer.strip() in [accepted.strip() for accepted in accepted_texts(sample)]
    return Score(float(right), read=right)


def _math_verify(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score as R1-V does: math-verify finds the answer equal to the truth, whatever it reads of it."""
    library = import_extra("math_verify", "math")
    parsed = library.parse(answer[:MAX_MATH])
    right = library.parse(accepted_texts(sample)[0])
    return Score(float(library.verify(parsed, right)), bool(parsed))


def _tagged_rating(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score as Q-Insight's reward does: the rating is less than 0.35 from the true one."""
    rating, right = numbers.tagged_rating(answer), sample.truth.number
    assert right is not None
    if rating is None:
        return Score(0.0, read=False)
    return Score(float(abs(rating - right) < 0.35), reading=str(rating), detail=(rating, right))


MAX_MATH = 20_000
"""Characters of an answer that math-verify is given."""

# --------------------------------------------------------------------------------------------------
# Official scorers that several tasks share, and the table of all.


def _letter_start(answer: str, sample: Sample, frame: Frame) -> Score:
    """Compare as the metric exact_match of lmms-eval does without case and punctuation."""
    bare = str.maketrans("", "", string.punctuation)
    reading = letters.option_start(answer).lower().translate(bare)
    return _word(reading, right_letter(sample).lower())


def _yes_no(read: Callable[[str], letters.Said | None]) -> Scorer:
    return lambda answer, sample, _: _word(
        read(answer), accepted_texts(sample)[0].strip().lower().rstrip(".")
    )


def _text(rule: Callable[[str, tuple[str, ...]], float]) -> Scorer:
    return lambda answer, sample, frame: Score(float(rule(answer, accepted_texts(sample))))


def _relaxed(answer: str, accepted: tuple[str, ...], harness: words.Harness) -> bool:
    return any(words.relaxed(answer, right, harness) for right in accepted)


def _real_world(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score as lmms-eval does for RealWorldQA: a letter where the truth is one, else equal text."""
    right = accepted_texts(sample)[0].strip()
    if right.upper() in ("A", "B", "C", "D"):
        return _word(letters.lmms_letter(answer, "ABCD"), right.upper(), 0.25)
    return _word(answer.lower().strip().rstrip("."), right.lower())


def _ocrbench(answer: str, sample: Sample, frame: Frame) -> Score:
    formula = sample.meta.get("dataset") == "HME100k"
    return Score(float(words.ocrbench(answer, accepted_texts(sample), "lmms_eval", formula)))


def _box(harness: places.Harness) -> Scorer:
    """Make a scorer of Acc@0.5 of the first box."""

    def score(answer: str, sample: Sample, frame: Frame) -> Score:
        assert sample.truth.boxes
        corners = places.refcoco_box(answer, frame, harness)
        overlap = places.raw_iou(corners or (0.0, 0.0, 0.0, 0.0), sample.truth.boxes[0].xyxy)
        return Score(float(overlap >= 0.5), corners is not None)

    return score


def _click(harness: places.Harness) -> Scorer:
    """Make a scorer of a click in the box."""

    def score(answer: str, sample: Sample, frame: Frame) -> Score:
        assert sample.truth.boxes
        return Score(float(places.screenspot_hit(answer, sample.truth.boxes[0], frame, harness)))

    return score


def _boxes_odinw(answer: str, sample: Sample, frame: Frame) -> Score:
    detail, share = odinw_row(answer, sample, frame)
    return Score(share, bool(detail.found_labels), detail=detail)


def _boxes_listed(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score with the F1 at IoU 0.5 of one image; COCOeval and LVISEval rank the boxes of all."""
    detail = listed_boxes(answer, sample, frame)
    hits, stated, right = detail.hits_found_right()
    value = 2 * hits / (stated + right) if stated + right else 1.0
    return Score(value, bool(detail.found_labels), detail=detail)


SCORERS: dict[str, Scorer] = {
    "letter_lmms": _letter(lambda a, s: letters.lmms_letter(a, option_letters(s))),
    "letter_mmmu": _letter(lambda a, s: letters.mmmu_letter(a, texts(s))),
    "letter_vlmeval": _letter(lambda a, s: letters.vlmeval_letter(a, texts(s))),
    "letter_blink": _letter(lambda a, s: letters.blink_letter(a, option_letters(s))),
    "letter_cv_bench": _letter(lambda a, s: letters.cv_bench_letter(a)),
    "letter_vstar": _letter(lambda a, s: letters.vstar_letter(a)),
    "letter_first": _letter(lambda a, s: letters.first_letter(a)),
    "letter_start": _letter_start,
    "real_world": _real_world,
    "yes_no_exact": _yes_no(letters.yes_no_exact),
    "yes_no_prefix": _yes_no(letters.yes_no_prefix),
    "yes_no_words": _yes_no(letters.yes_no_words),
    "anls": _text(words.anls),
    "relaxed_lmms": _text(lambda a, right: _relaxed(a, right, "lmms_eval")),
    "relaxed_vlmeval": _text(lambda a, right: _relaxed(a, right, "vlmevalkit")),
    "vqa_lmms": _text(lambda a, right: words.vqa_accuracy(a, right, "lmms_eval")),
    "vqa_vlmeval": _text(lambda a, right: words.vqa_accuracy(a, right, "vlmevalkit")),
    "substring": _text(words.substring),
    "ocrbench_lmms": _ocrbench,
    "count_word": _text(lambda a, right: numbers.count_word(a, right[0])),
    "count_first": _text(lambda a, right: numbers.count_first(a, right[0])),
    "box_lmms": _box("lmms_eval"),
    "box_vlmeval": _box("vlmevalkit"),
    "click_lmms": _click("lmms_eval"),
    "click_vlmeval": _click("vlmevalkit"),
    "span_iou": _first_span(spans.charades_span, spans.hull_iou),
    "boxes_odinw": _boxes_odinw,
    "boxes_listed": _boxes_listed,
    "mmmu": _mmmu,
    # MMMU-Pro's vision rows: the whole answer is the letter, blanks included.
    "letter_equal": lambda a, s, _: Score(float(a == right_letter(s))),
    "letter_mmvp": _letter(lambda a, s: letters.mmvp_letter(a)),
    "letter_visulogic": _letter(lambda a, s: letters.visulogic_letter(a)),
    "letter_geometry": _letter(lambda a, s: letters.geometry_letter(a, s.truth.options or ())),
    "letter_mmbench": _letter(lambda a, s: letters.mmbench_letter(a, _four_texts(s))),
    "letter_mmbench_judged": _letter(
        lambda a, s: letters.mmbench_letter(a, _four_texts(s), rest=False)
    ),
    "letter_science": _science,
    "letter_tagged": _letter(lambda a, s: letters.tagged_letter(a)),
    "naturalbench": _naturalbench,
    "mathvista": _mathvista,
    "mathvision": _mathvision,
    "count_tagged": _number(words.tagged_count),
    "click_screen": _point(lambda a, s: places.screen_point(a, (1.0, 1.0))),
    "click_screen_sized": _point(lambda a, s: places.screen_point(a, _size(s))),
    "click_pyautogui": _point(lambda a, s: places.pyautogui_point(a, _size(s))),
    "points_in_mask": _in_mask,
    "count_to_twenty": _number(numbers.count_to_twenty),
    "rating_tagged": _tagged_rating,
    "box_corner_pairs": _corner_pairs,
    "name_two_way": _name_two_way,
    "equal_text": _equal_text,
    "math_verify": _math_verify,
    "letter_hr_bench": _letter(lambda a, s: letters.hr_bench_letter(a, texts(s))),
    "slake": _text(lambda a, right: words.slake(a, right[0])),
    "letter_mvbench": _mvbench,
    "letter_long_video": _letter(lambda a, s: letters.long_video_letter(a)),
    "letter_perception": _letter(lambda a, s: letters.perception_letter(a)),
    # Draws one of four letters, whatever the options, if it finds none.
    "letter_mmau": lambda a, s, _: _word(letters.mmau_letter(a, "ABCD"), right_letter(s), 0.25),
    "letter_omni": _letter(lambda a, s: letters.omni_letter(a, "ABCD")),
    "letter_worldsense": _letter(lambda a, s: letters.worldsense_letter(a, texts(s)) or "A"),
    "letter_daily_omni": lambda a, s, _: _word(a.strip().upper(), right_letter(s)),
    "words_mmau": _mmau(str),
    "words_r1_aqa": _mmau(words.r1_aqa_answer),
    "vsi": _vsi,
    "video_r1": _r1,
    "human_omni": _omni,
    "tempcompass": _judged(_tempcompass_choice),
    "tempcompass_yes_no": _judged(lambda a, s: words.tempcompass_yes_no(a, accepted_texts(s)[0])),
    "tempcompass_matching": _judged(_tempcompass_matching),
    "mmvu": _mmvu,
    "video_mmmu": _video_mmmu,
    "moment_videochat": _first_span(spans.videochat_span, spans.videochat_iou),
    "gqa_videochat": _videochat_gqa,
    "next_gqa": _next_gqa,
    "tagged_text": lambda a, s, _: _word(
        (spans.tagged(a, "answer") or "").strip().lower(), accepted_texts(s)[0].strip().lower()
    ),
}
"""Official scorers by name."""
