"""Official scorers of tasks about videos and audio."""

from __future__ import annotations

from collections.abc import Callable

from vlmrl.benchmark_rules import letters, numbers, spans, words
from vlmrl.benchmarking.scores import (
    Score,
    Scorer,
    accepted_texts,
    judged_scorer,
    letter_scorer,
    option_letters,
    right_letter,
    texts,
    word_score,
)
from vlmrl.schema import Frame, Sample, Span


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
        return word_score(letter, right_letter(sample))
    right = words.video_mmmu_open(answer, accepted_texts(sample)[0])
    return Score(float(right) if answer else None, bool(answer))


def _mmau(read: Callable[[str], str]) -> Scorer:
    """Make a scorer of MMAU's own match of words."""

    def score(answer: str, sample: Sample, frame: Frame) -> Score:
        reading, options = read(answer), texts(sample)
        right = words.mmau_match(reading, options[right_letter(sample)], [*options.values()])
        return Score(float(right), bool(reading), reading)

    return score


def _mmau_letter(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score MMAU's letter by its text, which another option may have as well but for case.

    The harness draws one of four letters, whatever the options, if it finds none.
    """
    plain = {letter: text.strip().lower() for letter, text in texts(sample).items()}
    right = [letter for letter in "ABCD" if plain.get(letter) == plain[right_letter(sample)]]
    reading = letters.mmau_letter(answer, "ABCD")
    return Score(float(reading in right), reading is not None, reading or "", len(right) / 4)


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


SCORERS: dict[str, Scorer] = {
    "span_iou": _first_span(spans.charades_span, spans.hull_iou),
    "letter_mvbench": _mvbench,
    "letter_long_video": letter_scorer(lambda a, s: letters.long_video_letter(a)),
    "letter_perception": letter_scorer(lambda a, s: letters.perception_letter(a)),
    "letter_mmau": _mmau_letter,
    "letter_omni": letter_scorer(lambda a, s: letters.omni_letter(a, "ABCD")),
    "letter_worldsense": letter_scorer(lambda a, s: letters.worldsense_letter(a, texts(s)) or "A"),
    "letter_daily_omni": lambda a, s, _: word_score(a.strip().upper(), right_letter(s)),
    "words_mmau": _mmau(str),
    "words_r1_aqa": _mmau(words.r1_aqa_answer),
    "vsi": _vsi,
    "video_r1": _r1,
    "human_omni": _omni,
    "tempcompass": judged_scorer(_tempcompass_choice),
    "tempcompass_yes_no": judged_scorer(
        lambda a, s: words.tempcompass_yes_no(a, accepted_texts(s)[0])
    ),
    "tempcompass_matching": judged_scorer(_tempcompass_matching),
    "mmvu": _mmvu,
    "video_mmmu": _video_mmmu,
    "moment_videochat": _first_span(spans.videochat_span, spans.videochat_iou),
    "gqa_videochat": _videochat_gqa,
    "next_gqa": _next_gqa,
}
