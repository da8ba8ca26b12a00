"""The report of an audit: the rows that were scored and the findings.

`attack_bench.verify` makes it, `vlmrl verify` prints it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vlmrl.audit.constant_answer import ConstantAnswer
from vlmrl.schema import Verdict
from vlmrl.truths.json_form import to_json

__all__ = ["Finding", "Report"]

EXCERPT = 100
"""Characters of a completion that a report shows."""


@dataclass(frozen=True, slots=True)
class ScoredCompletion:
    """A scored completion, one row of the table."""

    sample: str
    what: str
    score: float | None
    note: str
    text: str
    """The beginning of the completion."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault of a verifier: an attack on a sample, its score and those of the honest answers."""

    attack: str
    sample: str
    problem: str
    score: float | None
    wrong: float | None
    right: float | None
    text: str
    """The beginning of the completion."""


@dataclass(frozen=True, slots=True)
class Report:
    """The result of an audit; no `findings` means that no attack was paid.

    `tried` counts completions by attack; `spread` describes the scores of the rows shown.
    """

    verifier: str
    rows: tuple[ScoredCompletion, ...]
    findings: tuple[Finding, ...]
    tried: dict[str, int]
    spread: dict[str, float]
    calls_per_second: float
    not_drawn: int = 0
    """Begging texts that no installed font could draw into an image."""
    constant: ConstantAnswer | None = None
    """The best constant answer; None where the verifier compares completions or asks a network."""

    @property
    def ignores_truth(self) -> bool:
        """Return whether every sample's right and wrong answer are paid alike, as for a format."""
        paid: dict[str, dict[str, float | None]] = {}
        for row in self.rows:
            paid.setdefault(row.sample, {})[row.what] = row.score
        pairs = [
            (of["right"], of["wrong"]) for of in paid.values() if {"right", "wrong"} <= set(of)
        ]
        return bool(pairs) and all(right == wrong for right, wrong in pairs)

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        verdict = {"passed": not self.findings, "ignores_truth": self.ignores_truth}
        return {**verdict, **to_json(asdict(self))}


def make_row(sample: str, what: str, verdict: Verdict, text: str) -> ScoredCompletion:
    """Return the row of one completion: the sample's id, what it was, its verdict and its text."""
    return ScoredCompletion(
        sample, what, verdict.score, verdict.fault or verdict.note, excerpt(text)
    )


def excerpt(text: str) -> str:
    """Return the beginning of a text in ASCII, with escapes for all other characters."""
    return ascii(text[:EXCERPT])[1:-1] + ("..." if len(text) > EXCERPT else "")


def summarise(scores: Sequence[float]) -> dict[str, float]:
    """Return min, mean, max, (population) deviation and the count of distinct scores; {} for none."""
    if not scores:
        return {}
    return {
        "min": min(scores),
        "mean": statistics.fmean(scores),
        "max": max(scores),
        "deviation": statistics.pstdev(scores),
        "distinct": float(len(set(scores))),
    }
