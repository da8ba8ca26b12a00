"""Official scorers of questions about long videos, of motion, and of moments in a video."""

from __future__ import annotations

from vlmrl.benchmark_rules import letters, spans
from vlmrl.benchmarking.scores import Score, Scorer, letter_scorer, texts
from vlmrl.schema import Frame, Sample


def _egoschema(answer: str, sample: Sample) -> str | None:
    listed = {letter: f"{letter}. {text}" for letter, text in texts(sample).items()}
    return letters.egoschema_letter(answer, listed)


def _qvhighlights(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score the first moment by its best true one; the precisions of all moments are parts."""
    stated, right = spans.listed_spans(answer), sample.truth.spans or ()
    precisions = spans.moment_precisions(stated, right)
    parts = {
        "precision": sum(precisions) / len(precisions),
        "precision_at_0.5": precisions[0],
        "precision_at_0.75": precisions[5],
    }
    iou = max((spans.hull_iou(stated[0], span) for span in right), default=0.0) if stated else 0.0
    return Score(iou, bool(stated), detail=parts)


SCORERS: dict[str, Scorer] = {
    "letter_egoschema": letter_scorer(_egoschema),
    "letter_motion": letter_scorer(lambda a, s: letters.motion_letter(a)),
    "letter_videomathqa": letter_scorer(lambda a, s: letters.videomathqa_letter(a)),
    "moments": _qvhighlights,
}
