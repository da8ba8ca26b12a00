"""Official scorers of short answers about photographs, charts and drawings."""

from __future__ import annotations

import json

from vlmrl.benchmark_rules import Harness, documents, letters, words
from vlmrl.benchmarking.rows import INDEX
from vlmrl.benchmarking.scores import (
    Score,
    Scorer,
    accepted_texts,
    equal_text,
    letter_scorer,
    text_scorer,
    word_score,
)
from vlmrl.schema import Frame, Sample


def _letter_of_five(harness: Harness) -> Scorer:
    return letter_scorer(lambda a, s: letters.mme_realworld_letter(a, harness))


def _blind(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score VLMsAreBlind: the truth is the published one, not the forms that we accept."""
    reading = words.blind_reading(answer, str(sample.meta["task"]))
    return word_score(reading, str(sample.meta["groundtruth"]).strip().lower())


def _once_a_chart(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score the one of a chart's four questions that lmms-eval asks; the others do not count there."""
    index = sample.meta[INDEX]
    assert isinstance(index, int)
    chart, number = divmod(index, 4)
    return equal_text(answer, sample, frame) if number == chart % 4 else Score(None)


def _ocrbench_v2(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score OCRBench v2 by the rule of the row's task."""
    task, by, right = str(sample.meta["type"]), str(sample.meta["eval"]), accepted_texts(sample)
    answer = answer.strip()
    if task == "text counting en":
        return Score(documents.counted(answer, right, by))
    if task.startswith("formula recognition"):
        return Score(documents.formula(answer, right, task.endswith("cn")))
    if task.startswith("key information"):
        return Score(documents.fields_f1(answer, json.loads(str(sample.meta["fields_of"]))))
    if task in ("VQA with position en", "text grounding en"):
        x1, y1, x2, y2 = json.loads(str(sample.meta["place"]))
        if task == "text grounding en":
            return Score(documents.grounded(answer, (x1, y1, x2, y2)))
        return Score(documents.placed_answer(answer, right, (x1, y1, x2, y2)))
    if task == "handwritten answer extraction cn":
        return Score(float(documents.letters_listed(answer, right[0])))
    if by == "multiple choice":
        return Score(float(documents.spelt_letter(answer, right[0])))
    if by == "case sensitive" or not task.endswith("cn"):
        return Score(documents.contained(answer, right, case=by == "case sensitive"))
    return Score(documents.contained_chinese(answer, right))


SCORERS: dict[str, Scorer] = {
    "vqa_plain_lmms": text_scorer(
        lambda a, right: words.vqa_accuracy(a, right, "lmms_eval", tokenized=False)
    ),
    "equal_lmms": text_scorer(lambda a, right: words.equal_text(a, right[0], "lmms_eval")),
    "equal_vlmeval": text_scorer(lambda a, right: words.equal_text(a, right[0], "vlmevalkit")),
    "letter_mme_realworld_lmms": _letter_of_five("lmms_eval"),
    "letter_mme_realworld_vlmeval": _letter_of_five("vlmevalkit"),
    "blind": _blind,
    "equal_text_once_a_chart": _once_a_chart,
    "ocrbench_v2": _ocrbench_v2,
}
