"""Measure how well the stated stretches of time cover the true ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from vlmrl.answers import geometry, parsing
from vlmrl.benchmark_rules import VERSIONS, Harness, spans
from vlmrl.schema import AnswerForm, Completion, Span, Truth, Verdict
from vlmrl.scoring.verifier import AnswerVerifier, Laws


@dataclass(frozen=True)
class TemporalIou(AnswerVerifier):
    """IoU of the time that the answer's spans cover with the time the true spans cover, in [0, 1].

    `threshold`: an IoU below it scores 0; `binary`: 1 from it on (R@IoU). `union`: `set` measures
    the time covered; `hull` from the first start to the last end, so that a gap counts; `single` as
    `set`, but more spans than the truth has score 0. `ends`: the IoU times 1 - |difference| of the first
    starts and times 1 - that of the last ends, in shares of the video. `where`: `glue` reads the spans of
    the `<glue>` tag. `official: lmms_eval`: Charades-STA (`spans.charades_span`).

    Published sets: VideoChat-R1 temporal grounding, TimeZero, Temporal-R1: `union: hull`; Time-R1:
    `union: hull, ends: true`; VideoChat-R1 grounded QA: `where: glue` with template
    think_answer_glue; R@0.5: `threshold: 0.5, binary: true`.

    Refuses: spans that run backwards or lie outside the video, nan, infinities.

    Source: VideoChat-R1, arXiv 2504.06958; Charades-STA, arXiv 1705.02101; `ends`: Time-R1, arXiv
    2503.13377, and its code (iou_v2).

    Raises:
        ValueError: the truth has no spans and is not declared none; several under an official rule;
            `ends` and no duration.

    Example:
    >>> from vlmrl.scoring.verifier import judge
    >>> judge(TemporalIou(), "5s - 10s", Truth(spans=(Span(5, 15),))).score
    0.5
    """

    needs: ClassVar[tuple[str, ...]] = ("spans",)
    laws: ClassVar[Laws] = Laws(
        junk="[ITEMS, [98.5, 99.5]]",
        options=({}, {"union": "hull"}, {"union": "single"}, {"threshold": 0.5, "binary": True}),
        any_order=True,
    )

    threshold: float = 0.0
    """An IoU below it scores 0."""
    binary: bool = False
    """Score 1 from the threshold on (R@IoU)."""
    union: Literal["set", "hull", "single"] = "set"
    """`set`: the time covered; `hull`: from the first start to the last end, so that a gap counts;
    `single`: as `set`, but more spans than the truth has, usually one, score 0."""
    ends: bool = False
    """Multiply the IoU by how near the first starts and the last ends are."""
    where: Literal["answer", "glue"] = "answer"
    """`answer`, or `glue`: read the spans of the `<glue>` tag."""
    official: Harness | None = None
    """Charades-STA as in lmms-eval (`spans.charades_span`); to compare, not to train."""

    def __post_init__(self) -> None:
        """Refuse options that would pay everything."""
        if self.binary and self.threshold <= 0:
            raise ValueError("binary needs a threshold above 0")
        if self.official == "vlmevalkit":
            raise ValueError("VLMEvalKit has no Charades-STA: the official rule is lmms_eval")

    def answer_form(self) -> AnswerForm:
        """Leave the answer to other verifiers where the spans are elsewhere."""
        return AnswerForm(self.needs if self.where == "answer" else ())

    def grade(self, answer: str, truth: Truth, completion: Completion) -> Verdict:
        """Compare the spans."""
        right = truth.spans
        if not right or (self.official and len(right) > 1):
            raise ValueError(f"expected one or more true spans (official: one), got {right!r}")
        stated, note = self._found(answer, completion)
        if not stated:
            return Verdict(0.0, note=note)
        if self.union == "single" and len(stated) > len(right):
            return Verdict(0.0, note=f"expected at most {len(right)} spans, got {len(stated)}")
        if self.union == "hull" or self.official:
            overlap = spans.hull_iou(_hull(stated), _hull(right))
        else:
            overlap = geometry.interval_iou(stated, right)
        if self.ends:
            overlap *= _near(_hull(stated), _hull(right), completion.frame.duration)
        if overlap < self.threshold:
            return Verdict(0.0, {"iou": overlap}, tuple(stated), "below the threshold")
        return Verdict(1.0 if self.binary else overlap, {"iou": overlap}, tuple(stated), note)

    def _found(self, answer: str, completion: Completion) -> tuple[list[Span], str]:
        if self.official:
            span = spans.charades_span(answer)
            return (
                ([span], VERSIONS[self.official])
                if span
                else ([], "no span found by the official rule")
            )
        if self.where == "glue":
            start, end = completion.parsed.spans.get("glue", (0, 0))
            answer = completion.text[start:end]
        return parsing.spans(answer, completion.frame)


def _near(stated: Span, right: Span, duration: float | None) -> float:
    """Return the product of 1 - |difference| of starts and of ends, in shares of `duration` seconds."""
    if not duration:
        raise ValueError("expected the duration of the video, got none: `ends` needs it")
    starts, ends = abs(stated.start - right.start), abs(stated.end - right.end)
    return max(0.0, 1 - starts / duration) * max(0.0, 1 - ends / duration)


def _hull(spans: list[Span] | tuple[Span, ...]) -> Span:
    return Span(min(s.start for s in spans), max(s.end for s in spans))
