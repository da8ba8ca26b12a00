"""Official scorers of VLMEvalKit's own readings of questions about images."""

from __future__ import annotations

from vlmrl.benchmark_rules import letters
from vlmrl.benchmarking.scores import Scorer, judged_scorer, right_letter, texts
from vlmrl.schema import Sample


def _mmmu(answer: str, sample: Sample) -> bool | None:
    options = texts(sample)
    right = right_letter(sample) if options else str(sample.meta["stated"])
    return letters.vlmeval_mmmu(answer, right, options)


def _mathvista(answer: str, sample: Sample) -> bool | None:
    options = sample.truth.options or ()
    right = right_letter(sample) if options else str(sample.meta["stated"])
    return letters.vlmeval_mathvista(answer, right, options, str(sample.meta["answer_type"]))


SCORERS: dict[str, Scorer] = {
    "mmmu_vlmeval": judged_scorer(_mmmu),
    "mathvista_vlmeval": judged_scorer(_mathvista),
}
