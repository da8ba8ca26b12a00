"""Measure how well the set of names in the answer agrees with the true set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from vlmrl.answers import parsing, text
from vlmrl.schema import Completion, Truth, Verdict
from vlmrl.scoring.verifier import AnswerVerifier, Laws


@dataclass(frozen=True)
class Labels(AnswerVerifier):
    """Agreement of the names in the answer, split at commas, with the true names, in [0, 1].

    Where the row has options, their letters and their texts are the same names. A list with more wrong
    names than right ones scores 0, unless `mostly_wrong` allows it.

    Published sets: Med-R1 (chest X-ray): `measure: recall, fatal: true, negative: No Finding,
    negative_credit: 0.25` (there each hit pays 1 without bound); HumanOmniV2: `mostly_wrong: true`;
    HumanSense: `measure: exact, fatal: true, subset_credit: 0.5`; Visual-ARFT degradations:
    `measure: exact`.

    Refuses: an empty list, a list of everything that could be right, substrings of names, two lists, names
    that are taken back (`edema, no edema`); a name counts once however often it is said.

    Source: Med-R1, arXiv 2503.13939.

    Example:
    >>> from vlmrl.scoring.verifier import judge
    >>> judge(Labels(), "edema, fracture", Truth(labels=("Edema", "Effusion"))).score
    0.5
    """

    needs: ClassVar[tuple[str, ...]] = ("labels",)
    laws: ClassVar[Laws] = Laws(
        junk="ANSWER, zzzz",
        options=(
            {},
            {"measure": "jaccard"},
            {"measure": "exact"},
            {"measure": "exact", "fatal": True, "subset_credit": 0.5},
            {"measure": "recall", "fatal": True, "negative": "No Finding", "negative_credit": 0.25},
        ),
    )

    measure: Literal["f1", "jaccard", "exact", "recall"] = "f1"
    """`f1`: 2 hits / (stated + true); `jaccard`: hits / union; `exact`: 1 if the sets are equal;
    `recall`: hits / true, only with `fatal`."""
    fatal: bool = False
    """Whether one wrong name makes the score 0."""
    mostly_wrong: bool = False
    """Whether a list with more wrong names than right ones is paid too; `f1` and `jaccard` then pay
    a part for naming everything."""
    subset_credit: float = 0.0
    """What `exact` pays for a proper, non-empty part of the true set."""
    negative: str | None = None
    """The name of the class "nothing found"."""
    negative_credit: float = 1.0
    """What naming that class pays where it is right."""

    def __post_init__(self) -> None:
        """Refuse recall alone: naming everything would be perfect."""
        if self.measure == "recall" and not self.fatal:
            raise ValueError("measure recall needs fatal: true, else naming everything is perfect")
        if not (0 <= self.subset_credit <= 1 and 0 <= self.negative_credit <= 1):
            raise ValueError("expected credits in [0, 1]")

    def grade(self, answer: str, truth: Truth, completion: Completion) -> Verdict:
        """Compare the two sets."""
        right = set(_named(truth.labels or (), truth.options))
        if not right:
            raise ValueError("no true labels: declare the truth none if there are none")
        names, note = parsing.read_names(answer)
        names = list(dict.fromkeys(_named(names, truth.options)))
        stated = set(names)
        hits = len(stated & right)
        wrong = len(stated - right)
        if not hits or (self.fatal and wrong):
            return Verdict(0.0, answer=names, note=note or "no right name, or a wrong one")
        if wrong > hits and not self.mostly_wrong:
            return Verdict(0.0, answer=names, note=f"{wrong} wrong names, {hits} right")
        if self.negative is not None and stated == right == {text.label(self.negative)}:
            return Verdict(self.negative_credit, answer=names)
        return Verdict(self._score(hits, stated, right), answer=names)

    def _score(self, hits: int, stated: set[str], right: set[str]) -> float:
        if self.measure == "f1":
            return 2 * hits / (len(stated) + len(right))
        if self.measure == "jaccard":
            return hits / len(stated | right)
        if self.measure == "recall":
            return hits / len(right)
        return 1.0 if stated == right else self.subset_credit if stated < right else 0.0


def _named(names: Sequence[str], options: Sequence[str] | None) -> Iterator[str]:
    """Yield the names as they are compared: of options the letter, in lower case."""
    for name in names:
        letter = parsing.letter_of(name, options) if options else None
        yield text.label(letter or name)
