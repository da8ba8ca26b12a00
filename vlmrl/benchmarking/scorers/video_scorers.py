"""Official scorers of tasks about videos and audio, by name: see `vlmrl.benchmarking.scorers.official`."""

from __future__ import annotations

import string
from collections.abc import Callable

from vlmrl.answers.benchmark_rules import open_answers
from vlmrl.answers.benchmark_rules.letters import lmms_letter
from vlmrl.answers.benchmark_rules.video_audio import letters, numbers, times, words
from vlmrl.benchmarking.scorers.scores import (
    Score,
    Scorer,
    accepted_texts,
    letter_scorer,
    option_letters,
    right_letter,
    texts,
)
from vlmrl.schema import Frame, Sample, Span

__all__ = ["VIDEO_SCORERS"]


def _mvbench(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score MVBench's letter; an empty answer is left out of the number."""
    said = letters.mvbench_word(answer)
    right = letters.mvbench_word(right_letter(sample))
    return Score(float(said == right) if answer else None, bool(answer), said)


def _drawn(find: Callable[[str, str], str | None], drawn_from: str) -> Scorer:
    """Make a scorer of a rule that draws one of these letters, whatever the options, if it finds none."""

    def score(answer: str, sample: Sample, frame: Frame) -> Score:
        found = find(answer, drawn_from)
        right = right_letter(sample)
        return Score(float(found == right), bool(found), found or "", 1 / len(drawn_from))

    return score


def _vsi(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score VSI-Bench: the first word of a choice, less its full stops; else the first number."""
    if sample.truth.options:
        said = answer.split(" ")[0].rstrip(".").strip()
        return Score(float(said.lower() == right_letter(sample).lower()), bool(said), said)
    found = numbers.vsi_number(answer)
    assert sample.truth.number is not None
    if found is None:
        return Score(0.0, read=False)
    return Score(numbers.vsi_mean_relative_accuracy(found, sample.truth.number))


def _r1(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score as Video-R1: the letter verbatim, or the mean relative accuracy of a number."""
    said = (times.tagged(answer, "answer") or "").strip() or answer.strip()
    truth = sample.truth
    if truth.number is None or truth.options:
        return Score(float(said == right_letter(sample)), said=said)
    found = numbers.r1_number(said)
    if found is None:
        return Score(0.0, read=False)
    return Score(numbers.r1_mean_relative_accuracy(found, truth.number))


def _omni(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score as HumanOmniV2: the F1 of letters, yes or no, or the letter verbatim."""
    said, truth = (times.tagged(answer, "answer") or "").strip() or answer, sample.truth
    if truth.labels:
        return Score(words.omni_letters_f1(said, ",".join(truth.labels)), said=said)
    if truth.options:
        return Score(float(said.strip() == right_letter(sample)), said=said)
    return Score(float(words.omni_judged(said, accepted_texts(sample)[0])), said=said)


def _judged(rule: Callable[[str, Sample], bool | None]) -> Scorer:
    """Make a scorer of a rule that leaves what it cannot read to a judge."""

    def score(answer: str, sample: Sample, frame: Frame) -> Score:
        right = rule(answer, sample)
        return Score(float(bool(right)), right is not None)

    return score


def _right_option(sample: Sample) -> str:
    """Return the right option with its letter: `B. a dog`."""
    letter = right_letter(sample)
    return f"{letter}. {texts(sample)[letter]}"


def _matching(answer: str, sample: Sample) -> bool | None:
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
        found = lmms_letter(answer, option_letters(sample))
        return Score(float(found == right_letter(sample)), bool(found), found or "")
    right = open_answers.video_mmmu_open(answer, accepted_texts(sample)[0])
    return Score(float(right) if answer else None, bool(answer))


def _mmau(read: Callable[[str], str]) -> Scorer:
    """Make a scorer of MMAU's own match of words."""

    def score(answer: str, sample: Sample, frame: Frame) -> Score:
        said, options = read(answer), texts(sample)
        right = words.mmau_match(said, options[right_letter(sample)], [*options.values()])
        return Score(float(right), bool(said), said)

    return score


def _daily(answer: str, sample: Sample, frame: Frame) -> Score:
    said = answer.strip().upper()
    return Score(float(said == right_letter(sample)), bool(said), said)


def _moment(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score VideoChat-R1's grounding."""
    assert sample.truth.spans
    found = times.videochat_span(answer)
    value = times.videochat_iou(found, sample.truth.spans[0]) if found else 0.0
    return Score(value, found is not None)


def _letter_and_spans(answer: str, sample: Sample) -> tuple[bool, list[Span] | None]:
    """Return whether VideoChat-R1 reads the right letter, and the spans that it reads."""
    said, glue = times.tagged(answer, "answer"), times.tagged(answer, "glue")
    right = said is not None and letters.videochat_letter(said) == right_letter(sample)
    return right, None if glue is None else times.glue_spans(glue)


def _videochat_gqa(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score VideoChat-R1's grounded questions: the letter; the IoU is a part."""
    right, found = _letter_and_spans(answer, sample)
    iou = 0.0 if found is None else times.covered_iou(found, sample.truth.spans or ())
    return Score(float(right), found is not None, detail={"choice": float(right), "iou": iou})


def _next_gqa(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score NExT-GQA: the right letter and an IoP from 0.5 on; of several spans the hull is taken."""
    right, found = _letter_and_spans(answer, sample)
    iou = iop = 0.0
    if found:
        hull = Span(min(one.start for one in found), max(one.end for one in found))
        overlaps = [times.next_gqa_overlap(hull, one) for one in sample.truth.spans or ()]
        iou, iop = (max(0.0, *column) for column in zip(*overlaps, strict=True))
    detail = {"choice": float(right), "iou": iou, "iop": iop}
    return Score(float(right and iop >= 0.5), bool(found), detail=detail)


def _quality(answer: str, sample: Sample, frame: Frame) -> Score:
    said = (times.tagged(answer, "answer") or "").strip().lower()
    return Score(float(said == accepted_texts(sample)[0].strip().lower()), bool(said), said)


VIDEO_SCORERS: dict[str, Scorer] = {
    "letter_mvbench": _mvbench,
    "letter_long_video": letter_scorer(lambda a, s: letters.long_video_letter(a)),
    "letter_perception": letter_scorer(lambda a, s: letters.perception_letter(a)),
    "letter_mmau": _drawn(letters.mmau_letter, string.ascii_uppercase[:4]),
    "letter_omni": letter_scorer(lambda a, s: letters.omni_letter(a, "ABCD")),
    "letter_worldsense": letter_scorer(lambda a, s: letters.worldsense_letter(a, texts(s)) or "A"),
    "letter_daily_omni": _daily,
    "words_mmau": _mmau(str),
    "words_r1_aqa": _mmau(words.r1_aqa_answer),
    "vsi": _vsi,
    "video_r1": _r1,
    "human_omni": _omni,
    "tempcompass": _judged(lambda a, s: words.tempcompass_choice(a, _right_option(s))),
    "tempcompass_yes_no": _judged(lambda a, s: words.tempcompass_yes_no(a, accepted_texts(s)[0])),
    "tempcompass_matching": _judged(_matching),
    "mmvu": _mmvu,
    "video_mmmu": _video_mmmu,
    "moment_videochat": _moment,
    "gqa_videochat": _videochat_gqa,
    "next_gqa": _next_gqa,
    "tagged_text": _quality,
}
"""Official scorers of tasks about videos and audio by name."""
