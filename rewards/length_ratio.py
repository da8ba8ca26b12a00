"""Measure how near a completion's length is to a multiple of that of some of its tags."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.schema import Completion, Sample, Verdict
from vlmrl.scoring.verifier import Laws, Verifier


@dataclass(frozen=True)
class LengthRatio(Verifier):
    """exp(-((L / l - `ratio`) / `width`)²), in [0, 1]: L characters in all, l in the content of `tags`.

    No answer, or none of the tags, scores 0. It says nothing of correctness: use it next to a verifier
    that does.

    Published sets: SRPO: `tags: [think, first_answer]` with weight 0.1, so that a
    reflection and a second answer are as long as the first.

    Refuses: an empty completion, a tag without content.

    Source: SRPO, arXiv 2506.01713, section 3.2, and its code: T = 2 l, T_max = 2.5 l.
    Differs: it counts tokens of its own tokenizer, which is the same ratio but for how dense a text is.

    Raises:
        ValueError: no tags, or a ratio or a width that is not positive.

    Example:
    >>> from vlmrl.schema import Truth
    >>> from vlmrl.scoring.verifier import judge
    >>> text = "<think>12345678901</think><answer>7</answer>"
    >>> judge(LengthRatio(ratio=4), text, Truth(), "think_answer").score
    1.0
    """

    laws: ClassVar[Laws] = Laws(
        best=f"<think>{'so ' * 11}</think><answer>7</answer>",
        template="think_answer",
    )

    tags: tuple[str, ...] = ("think",)
    """Tags of the template whose content is the measure."""
    ratio: float = 2.0
    """The best length of the completion, as a multiple of theirs."""
    width: float = 0.5
    """How far from the best ratio the score is 1/e."""

    def __post_init__(self) -> None:
        """Refuse what measures nothing."""
        if not self.tags:
            raise ValueError("tags: expected at least one")
        if not (self.ratio > 0 and self.width > 0):
            raise ValueError("expected a ratio and a width above 0")

    def __call__(self, completion: Completion, sample: Sample) -> Verdict:
        """Compare the lengths."""
        spans = completion.parsed.spans
        ranges = [spans.get(tag, (0, 0)) for tag in self.tags]
        measure = sum(len(completion.text[start:end]) for start, end in ranges)
        if completion.answer is None or not measure:
            return Verdict(0.0, note="no answer" if measure else "nothing to measure by")
        ratio = len(completion.text) / measure
        score = math.exp(-(min(abs(ratio - self.ratio) / self.width, 1e3) ** 2))
        return Verdict(score, {"ratio": ratio})
