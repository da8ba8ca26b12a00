"""Which stored rows a reader wants to see, as the address of a page or the options of a command say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean
from typing import Any
from urllib.parse import urlencode

from vlmrl.errors import UserError

__all__ = ["PARTS", "REWARD", "RowFacts", "RowFilter", "encode", "read_count", "read_range"]

PARTS = ("rollouts", "evals")
"""Folders of a run that have rows: those of training steps, and those of evaluations."""
REWARD = "reward"


@dataclass(frozen=True, slots=True)
class RowFacts:
    """Where a stored row is, and the numbers by which it is chosen: one for each of its G completions."""

    part: str
    step: int
    line: int
    """Of its file, from 0."""
    offset: int
    """Bytes before it."""
    length: int
    source: str
    id: str
    drawn: str
    """How an evaluation drew it; empty for training."""
    scores: Mapping[str, Sequence[float | None]]
    """The rewards, and by verifier the scores; None where a completion has none."""
    failed: Sequence[bool]
    """Whether a verifier failed on the completion, or it is masked."""

    @property
    def mean_reward(self) -> float | None:
        """Return the mean of the rewards that count; None without any."""
        known = [value for value in self.scores[REWARD] if value is not None]
        return fmean(known) if known else None


@dataclass(frozen=True, slots=True)
class RowFilter:
    """The rows that have at least one completion that fits; the default is every row of training."""

    part: str = "rollouts"
    only: str = ""
    """A source; empty: all."""
    first: int | None = None
    """The first step."""
    last: int | None = None
    by: str = ""
    """A verifier, whose scores then count in place of the rewards; empty: the rewards."""
    least: float | None = None
    """Least reward, or score, of a completion that fits."""
    most: float | None = None
    spread: float | None = None
    """Least standard deviation of them in the group, which says how far its completions disagree."""
    failed: bool = False
    """Whether only completions fit on which a verifier failed, or which are masked."""
    ids: tuple[str, ...] = ()
    """Rows by id; empty: all."""

    @classmethod
    def read(cls, query: Mapping[str, str]) -> RowFilter:
        """Return the filter that an address states; nonsense in it says nothing."""
        part = query.get("part", "")
        return cls(
            part=part if part in PARTS else PARTS[0],
            only=query.get("only", ""),
            first=read_count(query.get("first", "")),
            last=read_count(query.get("last", "")),
            by=query.get("by", ""),
            least=_number(query.get("least", "")),
            most=_number(query.get("most", "")),
            spread=_number(query.get("spread", "")),
            failed=query.get("failed") == "1",
        )

    def query(self) -> dict[str, str]:
        """Return what an address states of it: only what differs from the default."""
        found = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default and field.name != "ids":
                found[field.name] = "1" if value is True else str(value)
        return found

    def matches(self, row: RowFacts) -> bool:
        """Return whether a row is among those wanted."""
        if row.part != self.part or (self.only and row.source != self.only):
            return False
        if self.first is not None and row.step < self.first:
            return False
        if self.last is not None and row.step > self.last:
            return False
        if self.ids and row.id not in self.ids:
            return False
        if self.spread is not None:
            known = [value for value in self._scores(row) if value is not None]
            if len(known) < 2 or _deviation(known) < self.spread:
                return False
        return not self._looks_at_completions or bool(self.fitting(row))

    def fitting(self, row: RowFacts) -> list[int]:
        """Return the numbers of the row's completions that fit, from 0."""
        if not self._looks_at_completions:
            return list(range(len(row.failed)))
        return [g for g, value in enumerate(self._scores(row)) if self._fits(value, row.failed[g])]

    @property
    def _looks_at_completions(self) -> bool:
        return bool(self.by or self.failed or self.least is not None or self.most is not None)

    def _scores(self, row: RowFacts) -> Sequence[float | None]:
        return row.scores.get(self.by or REWARD) or (None,) * len(row.failed)

    def _fits(self, value: float | None, failed: bool) -> bool:
        if self.failed and not failed:
            return False
        if self.least is None and self.most is None:
            return value is not None or not self.by
        low = -math.inf if self.least is None else self.least
        high = math.inf if self.most is None else self.most
        return value is not None and low <= value <= high


def read_range(text: str, what: str) -> tuple[float | None, float | None]:
    """Return both ends of a range such as `0.2:0.8`, `10:` or `:5`; one number alone is both.

    Raises:
        UserError: it is no range; the message names `what`.
    """
    low, colon, high = text.partition(":")
    ends = [low, high] if colon else [low, low]
    found = [_number(end) for end in ends]
    if not text or any(end and value is None for end, value in zip(ends, found, strict=True)):
        raise UserError(f"{what}: expected a range such as 2:8, 2: or :8, got {text!r:.60}")
    return found[0], found[1]


def read_count(text: str, max_digits: int = 15) -> int | None:
    """Return a whole number from 0 as an address states it; None for anything else, or more digits."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= max_digits else None


def encode(query: Mapping[str, Any]) -> str:
    """Return a query for an address; what UTF-8 cannot say becomes question marks."""
    return urlencode(query, errors="replace")


def _deviation(values: Sequence[float]) -> float:
    """Return the standard deviation; that of `statistics` is exact, and too slow for a long run."""
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
