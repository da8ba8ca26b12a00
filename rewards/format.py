"""Decide whether a completion is laid out as its template asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from vlmrl.answers import parsing, templates
from vlmrl.schema import AnswerForm, Completion, Frame, Sample, Template, Verdict
from vlmrl.scoring.verifier import Laws, Verifier

Content = Literal["any", "boxes", "points", "pointed_boxes", "spans", "number", "json"]


@dataclass(frozen=True)
class Format(Verifier):
    """Score 1 if the whole completion matches its template (`templates.TEMPLATES`), else 0.

    `partial`: the share of the template's marks (opening and closing) that occur exactly once; a
    tag that must not be empty counts only with content. `own_lines`: each mark ends or begins a
    line. `content`: the answer can be read as this (an explicit nothing can be read as boxes,
    points, spans), else 0.

    Published sets: R1-V, Visual-RFT, VL-Cogito: the defaults. V-Triune (mathverify): `partial:
    true, own_lines: true`; V-Triune (detection), VLM-R1 REC, Griffon Vision-R1: `content: boxes`;
    Q-Insight: `own_lines: true, content: json`; Vision-R1 (HFRRF): the defaults under `combine:
    product`.

    Refuses: an empty answer, a tag twice, text outside the tags, tags out of order.

    Source: DeepSeek-R1, arXiv 2501.12948, section 2.2.2; V-Triune, arXiv 2505.18129, eq. 4.
    Differs: the tags occur exactly once, where a regular expression lets `.*?` run over a second
    one.

    Example:
    >>> from vlmrl.schema import Truth
    >>> from vlmrl.scoring.verifier import judge
    >>> judge(Format(), "<think>why</think><answer>B</answer>", Truth(), "think_answer").score
    1.0
    >>> judge(Format(), "<think></think><answer>B</answer>", Truth(), "think_answer").score
    0.0
    """

    laws: ClassVar[Laws] = Laws(
        best="<think>\nwhy\n</think>\n<answer>\n7\n</answer>",
        junk="ANSWER</answer>",
        options=(
            {},
            {"partial": True},
            {"own_lines": True},
            {"partial": True, "own_lines": True},
            {"content": "number"},
        ),
        template="think_answer",
    )

    partial: bool = False
    """Score the share of the template's marks (opening and closing) that occur exactly once; a tag
    that must not be empty counts only with content."""
    own_lines: bool = False
    """Whether each mark must end or begin a line."""
    content: Content = "any"
    """What the answer must be readable as, else 0; an explicit nothing can be read as boxes, points and
    spans."""

    def answer_form(self) -> AnswerForm:
        """Ask for lines of their own, and for the content."""
        kinds = (self.content,) if self.content in ("boxes", "points", "spans", "number") else ()
        return AnswerForm(kinds, own_lines=self.own_lines)

    def __call__(self, completion: Completion, sample: Sample) -> Verdict:
        """Judge the layout of one completion."""
        parsed = completion.parsed
        score = parsed.tag_share if self.partial else float(parsed.well_formed)
        if self.own_lines:
            on_lines = _share_on_lines(completion.text, sample.template)
            score = min(score, on_lines if self.partial else float(on_lines == 1))
        if score and self.content != "any" and not _reads_as(self.content, completion):
            return Verdict(0.0, note=f"the answer cannot be read as {self.content}")
        return Verdict(score, note="" if score == 1 else "does not match the template")


def _share_on_lines(text: str, chosen: str | Template) -> float:
    """Share of marks that occur exactly once with a line break on the inner side."""
    tags = templates.template(chosen).tags
    marks = [mark for tag in tags for mark in (f"{tag.open}\n", f"\n{tag.close}")]
    return sum(text.count(mark) == 1 for mark in marks) / len(marks) if marks else 1.0


def _reads_as(content: Content, completion: Completion) -> bool:
    answer = completion.answer
    if answer is None:
        return False
    if content in ("boxes", "points", "spans") and parsing.says_nothing(answer):
        return True
    return bool(_READERS[content](answer, completion.frame))


_READERS: dict[str, Callable[[str, Frame], object]] = {
    "boxes": lambda answer, frame: parsing.boxes(answer, frame)[0],
    "pointed_boxes": lambda answer, frame: parsing.pointed_boxes(answer, frame)[0],
    "points": lambda answer, frame: parsing.points(answer, frame)[0],
    "spans": lambda answer, frame: parsing.spans(answer, frame)[0],
    "number": lambda answer, frame: parsing.number(answer)[0] is not None,
    "json": lambda answer, frame: parsing.fields(answer)[0],
}
