"""How far a judge can be trusted, measured on pairs: does its place in the question decide, and who agrees.

A row of pairs is `{"prompt": str, "completions": [str, str], "better": "first" | "second" | "tie"}`, with
what else a row of `vlmrl score` has; `truth` and `better` may be absent. Each pair is asked in both orders,
and once more in the first one. Agreement is with `better`: what people said, or another judge, whose
verdicts `vlmrl verify --pairs` writes in this form.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from vlmrl.errors import UserError
from vlmrl.schema import Completion, Sample, Truth
from vlmrl.scoring.model_judge import Better, PairJudge, PairJudgement, describe_failure
from vlmrl.scoring.score_rows import read_lines, read_row
from vlmrl.scoring.verifier import Verifier
from vlmrl.system.chat_endpoint import Invalid, Unavailable

Z = 1.959964
"""Of a 95 % interval."""


@dataclass(frozen=True, slots=True)
class Share:
    """How many of `count` cases `times` are, with Wilson's 95 % interval."""

    times: int
    count: int

    @property
    def interval(self) -> tuple[float, float]:
        """Return the interval; from 0 to 1 where there is no case."""
        if not self.count:
            return 0.0, 1.0
        n, p = self.count, self.times / self.count
        centre, reach = p + Z * Z / (2 * n), Z * math.sqrt(p * (1 - p) / n + (Z / (2 * n)) ** 2)
        return (centre - reach) / (1 + Z * Z / n), (centre + reach) / (1 + Z * Z / n)

    def __str__(self) -> str:
        if not self.count:
            return "no case"
        low, high = self.interval
        return (
            f"{self.times / self.count:.3f} [{low:.3f}, {high:.3f}], {self.times} of {self.count}"
        )


@dataclass(frozen=True, slots=True)
class PairRow:
    """Two completions of a prompt, and which is said to be better; None: nobody said."""

    row: Mapping[str, Any]
    sample: Sample
    completions: tuple[Completion, Completion]
    better: Better | None


@dataclass(frozen=True, slots=True)
class Probe:
    """What a judge's verdicts on pairs add up to; `verdicts` are in the order of the rows, None: a fault."""

    verdicts: tuple[Better | None, ...]
    orders_agree: Share
    first_wins: Share
    """Of the replies that name a winner; one half without a bias of position."""
    same_twice: Share
    """Of the questions that were asked twice, word for word."""
    ties: Share
    agrees: Share
    """With the rows' `better`."""
    kappa: float | None
    """Cohen's; None where chance alone would agree, or there is nothing to agree with."""
    faults: Counter[str]


def read_pairs(path: Path) -> list[PairRow]:
    """Return all rows of a JSONL file of pairs.

    Raises:
        UserError: no such file, or a bad row; the message names file, line and key.
    """
    return read_lines(path, _read)


def probe(judge: Verifier, rows: Sequence[PairRow]) -> Probe:
    """Ask a judge of pairs three times about each row.

    Raises:
        UserError: it is no judge of pairs.
    """
    if not isinstance(judge, PairJudge):
        raise UserError(f"--pairs: expected a judge of pairs, got {type(judge).__name__}")
    with ThreadPoolExecutor(judge.concurrency) as threads:
        replies = list(threads.map(lambda row: _ask(judge, row), rows))
    known = [reply for reply in replies if not isinstance(reply, str)]
    both = [comparison for comparison, _ in known]
    winners = [winner for comparison in both for winner in comparison.winners]
    verdicts = tuple(None if isinstance(reply, str) else reply[0].better for reply in replies)
    rated = [
        (row.better, verdict)
        for row, verdict in zip(rows, verdicts, strict=True)
        if row.better is not None and verdict is not None
    ]
    return Probe(
        verdicts=verdicts,
        orders_agree=Share(sum(pair.agrees for pair in both), len(both)),
        first_wins=Share(winners.count("first"), len(winners)),
        same_twice=Share(sum(pair.straight == again for pair, again in known), len(known)),
        ties=Share(sum(pair.outcome == 0 for pair in both), len(both)),
        agrees=Share(sum(better == verdict for better, verdict in rated), len(rated)),
        kappa=kappa([better for better, _ in rated], [verdict for _, verdict in rated]),
        faults=Counter(reply for reply in replies if isinstance(reply, str)),
    )


def _ask(judge: PairJudge, row: PairRow) -> tuple[PairJudgement, Better] | str:
    """Return what both orders got, and the first one asked again; why not, in words."""
    left, right = (judge.candidate(completion) for completion in row.completions)
    try:
        first = judge.prefer(left, right, row.sample)
        second = judge.prefer(right, left, row.sample)
        return PairJudgement(first, second), judge.prefer(left, right, row.sample, again=1)
    except (Unavailable, Invalid) as error:
        return describe_failure(error)


def kappa(first: Sequence[str], second: Sequence[str]) -> float | None:
    """Return Cohen's kappa of two raters of the same cases, (a - c) / (1 - c): agreement a, by chance c.

    None where c is 1, or there is no case. Source: Cohen 1960.
    """
    n = len(first)
    counts, other = Counter(first), Counter(second)
    chance = sum(counts[name] * other[name] for name in counts) / (n * n) if n else 1.0
    if chance == 1.0:
        return None
    agreement = sum(a == b for a, b in zip(first, second, strict=True)) / n
    return (agreement - chance) / (1 - chance)


def judged_rows(rows: Sequence[PairRow], result: Probe) -> list[dict[str, Any]]:
    """Return the rows that were judged with the judge's verdict in place of theirs, in order."""
    return [
        {**row.row, "better": verdict}
        for row, verdict in zip(rows, result.verdicts, strict=True)
        if verdict is not None
    ]


def _read(row: object, name: str) -> PairRow:
    if not isinstance(row, Mapping):
        raise UserError(f"expected a JSON object, got {row!r:.80}")
    texts, better = row.get("completions"), row.get("better")
    if not (isinstance(texts, list) and len(texts) == 2 and all(isinstance(t, str) for t in texts)):
        raise UserError(f"completions: expected a list of two texts, got {texts!r:.80}")
    if better is not None and better not in get_args(Better):
        raise UserError(f"better: expected {', '.join(get_args(Better))}, got {better!r:.80}")
    others = {key: value for key, value in row.items() if key not in ("completions", "better")}
    # A row of `vlmrl score` has a truth; what people prefer may have none.
    stated = others | {"truth": others.get("truth", {"none": True})}
    left, right = (read_row({**stated, "completion": text}, name) for text in texts)
    sample = left.sample if "truth" in others else replace(left.sample, truth=Truth())
    return PairRow(row, sample, (left.completion, right.completion), better)
