"""Decide whether a completion repeats itself."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from vlmrl.answers import parsing
from vlmrl.schema import Completion, Sample, Verdict
from vlmrl.scoring.verifier import Laws, Verifier

MAX_WORDS = 10_000
"""Words that are looked at; a longer text scores by its first ones."""
MAX_LETTERS = 32
"""Letters of a word; a longer run without a space is split at commas and tags, or else into its letters."""
_NO_SPACES = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"
)
"""A letter of a script that puts no spaces between words, each of which counts as one."""
_PIECE = re.compile(r"[^,;<>]*[,;<>]+|[^,;<>]+")


@dataclass(frozen=True)
class Repetition(Verifier):
    """Share of the completion's runs of `size` words that are distinct, in [0, 1].

    `unit`: `words`, or `boxes`: the share of the answer's boxes that are distinct. A text shorter
    than one run repeats nothing and scores 1; an empty one scores 0. It says nothing of
    correctness: use it next to a verifier that does.

    Published sets: VLM-R1: `size: 6` for words, `unit: boxes` for boxes (there -(1 - share));
    VL-Cogito: `size: 20` (there weight 0.5 on wrong answers only).

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
        best="one two three", junk="ANSWER ANSWER", options=({}, {"size": 1})
    )

    size: int = 6
    """Words of a run."""
    unit: Literal["words", "boxes"] = "words"
    """`words`, or `boxes`: the share of the answer's boxes that are distinct."""

    def __post_init__(self) -> None:
        """Refuse runs of no words."""
        if self.size < 1:
            raise ValueError(f"expected size of at least 1, got {self.size}")

    def __call__(self, completion: Completion, sample: Sample) -> Verdict:
        """Count runs."""
        if completion.answer is None:
            return Verdict(0.0, note="no answer")
        items: list[object]
        if self.unit == "boxes":
            boxes, note = parsing.boxes(completion.answer, completion.frame)
            if not boxes:
                return Verdict(0.0, note=note)
            items = [box.xyxy for box in boxes]
        else:
            words = [*itertools.islice(_words(completion.text), MAX_WORDS)]
            last = max(1, len(words) - self.size + 1)
            items = [tuple(words[i : i + self.size]) for i in range(last)]
        return Verdict(len(set(items)) / len(items))


def _words(text: str) -> Iterator[str]:
    for word in text.lower().split(maxsplit=MAX_WORDS)[:MAX_WORDS]:
        if len(word) <= MAX_LETTERS and not _NO_SPACES.search(word):
            yield word
            continue
        for piece in _PIECE.findall(word):
            whole = len(piece) <= MAX_LETTERS and not _NO_SPACES.search(piece)
            yield from (piece,) if whole else piece
