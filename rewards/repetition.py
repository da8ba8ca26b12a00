"""Decide whether a completion repeats itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from vlmrl.answers import parsing, text
from vlmrl.schema import Completion, Sample, Verdict
from vlmrl.scoring.verifier import Laws, Verifier


@dataclass(frozen=True)
class Repetition(Verifier):
    """Share of the completion's runs of `size` words that are distinct, in [0, 1].

    `unit`: `words`, or `boxes`: the share of the answer's boxes that are distinct, or `sentences`: 1 if
    at most one sentence stands there again, else 0. A text shorter than one run repeats nothing and
    scores 1; an empty one scores 0. It says nothing of correctness: use it next to a verifier that does.

    Published sets: VLM-R1: `size: 6` for words, `unit: boxes` for boxes (there -(1 - share));
    VL-Cogito: `size: 20` (there weight 0.5 on wrong answers only); VisionReasoner: `unit: sentences`.

    Refuses: an empty text; a loop without spaces, or in a script that has none (Chinese, Thai): its letters
    count as words.

    Source: VLM-R1, arXiv 2504.07615; Yeo et al., arXiv 2502.03373.

    Example:
    >>> from vlmrl.schema import Truth
    >>> from vlmrl.scoring.verifier import judge
    >>> judge(Repetition(size=1), "to be or not to be", Truth()).score
    0.6666666666666666
    """

    laws: ClassVar[Laws] = Laws(
        best="one two three", junk="ANSWER ANSWER", options=({}, {"size": 1}, {"unit": "sentences"})
    )

    size: int = 6
    """Words of a run."""
    unit: Literal["words", "boxes", "sentences"] = "words"
    """`words`, or `boxes`: the share of the answer's boxes that are distinct, or `sentences`: 1 if at most
    one sentence stands there again, else 0."""

    def __post_init__(self) -> None:
        """Refuse runs of no words."""
        if self.size < 1:
            raise ValueError(f"expected size of at least 1, got {self.size}")

    def __call__(self, completion: Completion, sample: Sample) -> Verdict:
        """Count runs."""
        if completion.answer is None:
            return Verdict(0.0, note="no answer")
        if self.unit == "boxes":
            boxes, note = parsing.boxes(completion.answer, completion.frame)
            if not boxes:
                return Verdict(0.0, note=note)
            return Verdict(len({box.xyxy for box in boxes}) / len(boxes))
        if self.unit == "sentences":
            sentences = [*filter(None, map(str.strip, completion.text.split(".")))]
            return Verdict(float(len(sentences) - len(set(sentences)) < 2))
        return Verdict(text.distinct_share(completion.text, self.size))
