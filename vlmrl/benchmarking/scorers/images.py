"""Official scorers of questions about images, and of kinds of answer that many tasks share."""

from __future__ import annotations

import string

from vlmrl.benchmark_rules import letters, mathematics, numbers, spans, words
from vlmrl.benchmarking.scores import (
    Score,
    Scorer,
    accepted_texts,
    equal_text,
    letter_scorer,
    number_scorer,
    option_letters,
    right_letter,
    text_scorer,
    texts,
    word_score,
    yes_no_scorer,
)
from vlmrl.errors import import_extra
from vlmrl.schema import Frame, Sample


def _mmmu(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score MMMU: a letter where there are options, else an open answer."""
    if sample.truth.options:
        chance = 1 / len(option_letters(sample))
        return word_score(letters.mmmu_letter(answer, texts(sample)), right_letter(sample), chance)
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


def _name_two_way(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score a name; no answer at all is wrong there too, an empty one in tags would be right."""
    right = bool(answer) and words.name_two_way(answer, accepted_texts(sample)[0])
    return Score(float(right), bool(answer))


MAX_MATH = 20_000
"""Characters of an answer that math-verify is given."""


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


def _letter_start(answer: str, sample: Sample, frame: Frame) -> Score:
    """Compare as the metric exact_match of lmms-eval does without case and punctuation."""
    bare = str.maketrans("", "", string.punctuation)
    reading = letters.option_start(answer).lower().translate(bare)
    return word_score(reading, right_letter(sample).lower())


def _relaxed(answer: str, accepted: tuple[str, ...], harness: words.Harness) -> bool:
    return any(words.relaxed(answer, right, harness) for right in accepted)


def _real_world(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score as lmms-eval does for RealWorldQA: a letter where the truth is one, else equal text."""
    right = accepted_texts(sample)[0].strip()
    if right.upper() in ("A", "B", "C", "D"):
        return word_score(letters.lmms_letter(answer, "ABCD"), right.upper(), 0.25)
    return word_score(answer.lower().strip().rstrip("."), right.lower())


def _ocrbench(answer: str, sample: Sample, frame: Frame) -> Score:
    formula = sample.meta.get("dataset") == "HME100k"
    return Score(float(words.ocrbench(answer, accepted_texts(sample), "lmms_eval", formula)))


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
    "yes_no_exact": yes_no_scorer(letters.yes_no_exact),
    "yes_no_prefix": yes_no_scorer(letters.yes_no_prefix),
    "yes_no_words": yes_no_scorer(letters.yes_no_words),
    "anls": text_scorer(words.anls),
    "relaxed_lmms": text_scorer(lambda a, right: _relaxed(a, right, "lmms_eval")),
    "relaxed_vlmeval": text_scorer(lambda a, right: _relaxed(a, right, "vlmevalkit")),
    "vqa_lmms": text_scorer(lambda a, right: words.vqa_accuracy(a, right, "lmms_eval")),
    "vqa_vlmeval": text_scorer(lambda a, right: words.vqa_accuracy(a, right, "vlmevalkit")),
    "substring": text_scorer(words.substring),
    "ocrbench_lmms": _ocrbench,
    "count_word": text_scorer(lambda a, right: numbers.count_word(a, right[0])),
    "count_first": text_scorer(lambda a, right: numbers.count_first(a, right[0])),
    "mmmu": _mmmu,
    # MMMU-Pro's vision rows: the whole answer is the letter, blanks included.
    "letter_equal": lambda a, s, _: Score(float(a == right_letter(s))),
    "letter_mmvp": letter_scorer(lambda a, s: letters.mmvp_letter(a)),
    "letter_visulogic": letter_scorer(lambda a, s: letters.visulogic_letter(a)),
    "letter_geometry": letter_scorer(
        lambda a, s: letters.geometry_letter(a, s.truth.options or ())
    ),
    "letter_mmbench": letter_scorer(lambda a, s: letters.mmbench_letter(a, _four_texts(s))),
    "letter_mmbench_judged": letter_scorer(
        lambda a, s: letters.mmbench_letter(a, _four_texts(s), rest=False)
    ),
    "letter_science": _science,
    "letter_tagged": letter_scorer(lambda a, s: letters.tagged_letter(a)),
    "naturalbench": _naturalbench,
    "mathvista": _mathvista,
    "mathvision": _mathvision,
    "count_tagged": number_scorer(words.tagged_count),
    "count_to_twenty": number_scorer(numbers.count_to_twenty),
    "rating_tagged": _tagged_rating,
    "name_two_way": _name_two_way,
    "equal_text": equal_text,
    "math_verify": _math_verify,
    "letter_hr_bench": letter_scorer(lambda a, s: letters.hr_bench_letter(a, texts(s))),
    "slake": text_scorer(lambda a, right: words.slake(a, right[0])),
    "tagged_text": lambda a, s, _: word_score(
        (spans.tagged(a, "answer") or "").strip().lower(), accepted_texts(s)[0].strip().lower()
    ),
}
