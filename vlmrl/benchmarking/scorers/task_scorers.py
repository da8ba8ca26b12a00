"""Official scorers of single tasks, by name: see `vlmrl.benchmarking.scorers.official`."""

from __future__ import annotations

from pycocotools import mask as coco

from vlmrl.answers import masks
from vlmrl.answers.benchmark_rules import (
    counts,
    free_text,
    open_answers,
    places,
    points,
    task_letters,
)
from vlmrl.answers.benchmark_rules.letters import mmmu_letter
from vlmrl.benchmarking.scorers.scores import (
    Score,
    Scorer,
    accepted_texts,
    letter_scorer,
    option_letters,
    right_letter,
    texts,
)
from vlmrl.schema import Frame, Sample
from vlmrl.system.extras import import_extra

__all__ = ["TASK_SCORERS"]


def _mmmu(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score MMMU: a letter where there are options, else an open answer."""
    if sample.truth.options:
        found = mmmu_letter(answer, texts(sample))
        chance = 1 / len(option_letters(sample))
        return Score(float(found == right_letter(sample)), bool(found), found or "", chance)
    right = accepted_texts(sample)
    return Score(float(open_answers.mmmu_open(answer, right[0] if len(right) == 1 else right)))


def _equal_letter(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score MMMU-Pro's vision rows: the whole answer is the letter, blanks included."""
    return Score(float(answer == right_letter(sample)))


def _science(answer: str, sample: Sample, frame: Frame) -> Score:
    said = task_letters.science_letter(answer)
    return Score(float(said.lower() == right_letter(sample).lower()), bool(said), said)


def _naturalbench(answer: str, sample: Sample, frame: Frame) -> Score:
    right = accepted_texts(sample)[0].strip()
    words = ("A", "B") if right in ("A", "B") else ("yes", "no")
    said = task_letters.naturalbench_word(answer, words)
    return Score(float(said == (right if right in words else right.lower())), said is not None)


def _mathvista(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score what lmms-eval reads without its judge; the rest is wrong, so this is a lower bound."""
    options, kind = sample.truth.options or (), str(sample.meta["answer_type"])
    said = open_answers.mathvista_reading(answer, options, kind)
    if said is None:
        return Score(0.0, read=False)
    right = accepted_texts(sample)[0]
    precision = sample.meta.get("precision") or 0
    assert isinstance(precision, int | float)
    return Score(float(open_answers.mathvista_right(said, right, options, kind, precision)))


def _tagged_count(answer: str, sample: Sample, frame: Frame) -> Score:
    said = open_answers.tagged_count(answer)
    return Score(float(said == sample.truth.number), said is not None)


def _screen_click(sized: bool) -> Scorer:
    """Make a scorer of a click in the box; `sized`: pixels are divided by the image's size."""

    def score(answer: str, sample: Sample, frame: Frame) -> Score:
        return _hit(points.screen_point(answer, _size(sample) if sized else (1.0, 1.0)), sample)

    return score


def _pyautogui(answer: str, sample: Sample, frame: Frame) -> Score:
    return _hit(points.pyautogui_point(answer, _size(sample)), sample)


def _hit(found: points.XY | None, sample: Sample) -> Score:
    assert sample.truth.boxes
    box = sample.truth.boxes[0]
    hit = found and box.x1 <= found[0] <= box.x2 and box.y1 <= found[1] <= box.y2
    return Score(float(bool(hit)), found is not None)


def _size(sample: Sample) -> points.XY:
    width, height = sample.meta["size"]
    return float(width), float(height)


def _in_mask(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score the share of the points that lie in the mask, on the mask's own pixels."""
    assert sample.truth.masks
    mask = sample.truth.masks[0]
    height, width = masks.raster_size([mask], frame)
    found = points.unit_points(answer, width, height)
    filled = coco.decode(masks.encoded(mask, (height, width)))
    return Score(points.share_in_mask(found, filled), bool(found))


def _corner_pairs(answer: str, sample: Sample, frame: Frame) -> Score:
    assert sample.truth.boxes
    found = places.corner_pairs_iou(answer, sample.truth.boxes[0].xyxy)
    return Score(found or 0.0, found is not None)


def _name_two_way(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score a name; no answer at all is wrong there too, an empty one in tags would be right."""
    right = bool(answer) and free_text.name_two_way(answer, accepted_texts(sample)[0])
    return Score(float(right), bool(answer))


def _equal_text(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score what a judge is sure to find right: an accepted text to the letter; the rest is unread."""
    right = answer.strip() in [one.strip() for one in accepted_texts(sample)]
    return Score(float(right), read=right)


def _math_verify(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score as R1-V does: math-verify finds the answer equal to the truth, whatever it reads of it."""
    library = import_extra("math_verify", "math")
    said = library.parse(answer[:MAX_MATH])
    right = library.parse(accepted_texts(sample)[0])
    return Score(float(library.verify(said, right)), bool(said))


def _to_twenty(answer: str, sample: Sample, frame: Frame) -> Score:
    said = counts.count_to_twenty(answer)
    return Score(float(said == sample.truth.number), said is not None)


def _tagged_rating(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score as Q-Insight's reward does: the rating is less than 0.35 from the true one."""
    said, right = counts.tagged_rating(answer), sample.truth.number
    assert right is not None
    if said is None:
        return Score(0.0, read=False)
    return Score(float(abs(said - right) < 0.35), said=str(said), detail=(said, right))


MAX_MATH = 20_000
"""Characters of an answer that math-verify is given."""

TASK_SCORERS: dict[str, Scorer] = {
    "mmmu": _mmmu,
    "letter_equal": _equal_letter,
    "letter_mmvp": letter_scorer(lambda a, s: task_letters.mmvp_letter(a)),
    "letter_visulogic": letter_scorer(lambda a, s: task_letters.visulogic_letter(a)),
    "letter_geometry": letter_scorer(
        lambda a, s: task_letters.geometry_letter(a, s.truth.options or ())
    ),
    "letter_mmbench": letter_scorer(lambda a, s: task_letters.mmbench_letter(a, texts(s))),
    "letter_mmbench_judged": letter_scorer(
        lambda a, s: task_letters.mmbench_letter(a, texts(s), rest=False)
    ),
    "letter_science": _science,
    "letter_tagged": letter_scorer(lambda a, s: task_letters.tagged_letter(a)),
    "naturalbench": _naturalbench,
    "mathvista": _mathvista,
    "count_tagged": _tagged_count,
    "click_screen": _screen_click(sized=False),
    "click_screen_sized": _screen_click(sized=True),
    "click_pyautogui": _pyautogui,
    "points_in_mask": _in_mask,
    "count_to_twenty": _to_twenty,
    "rating_tagged": _tagged_rating,
    "box_corner_pairs": _corner_pairs,
    "name_two_way": _name_two_way,
    "equal_text": _equal_text,
    "math_verify": _math_verify,
    "letter_hr_bench": letter_scorer(lambda a, s: task_letters.hr_bench_letter(a, texts(s))),
    "slake": lambda a, s, _: Score(float(open_answers.slake(a, accepted_texts(s)[0]))),
}
"""Official scorers of single tasks by name."""
