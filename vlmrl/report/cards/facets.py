"""What a prompt with its completions can be chosen by: its verifiers, disagreements and failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmrl.runs.rollout_rows import Row

__all__ = ["DISAGREEMENTS", "FAILURES", "FacetChoice", "Facets", "facets_of"]

DISAGREEMENTS = {
    "rewards": "rewards of the group differ",
    "uniform": "rewards of the group are equal",
    "verifiers": "verifiers differ by half or more",
    "readings": "a strict reading pays less",
}
FAILURES = {
    "any": "any",
    "fault": "a verifier failed",
    "cut": "cut at a limit",
    "aborted": "aborted",
    "unread": "no readable answer",
    "form": "not in the form asked for",
}
HALF = 0.5
"""Difference of two scores of one completion from which their verifiers disagree."""
BELOW = 0.05
"""What a strict reading pays less than the reward, to be worth a look."""
FORM = "format"
"""The verifier of the form of an answer; a score below 1 is a failure."""


@dataclass(frozen=True, slots=True)
class Facets:
    """Keys of `DISAGREEMENTS` and `FAILURES` that hold of a prompt, and the verifiers that apply to it."""

    verifiers: tuple[str, ...] = ()
    disagreements: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FacetChoice:
    """What prompts are chosen by; an empty text chooses all."""

    source: str = ""
    verifier: str = ""
    disagreement: str = ""
    failure: str = ""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> FacetChoice:
        """Return the choice that an address states."""
        return cls(**{name: given.get(name, "") for name in cls.__slots__})

    def holds(self, row: Row) -> bool:
        """Return whether a row is among the chosen."""
        found = facets_of(row["completions"])
        wanted = (
            (self.source, (row["source"],)),
            (self.verifier, found.verifiers),
            (self.disagreement, found.disagreements),
            (self.failure, found.failures),
        )
        return all(not value or value in known for value, known in wanted)


def facets_of(completions: Sequence[Row]) -> Facets:
    """Return what one prompt's completions can be chosen by."""
    verdicts = [(n, v) for one in completions for n, v in one["verdicts"].items() if v["applies"]]
    verifiers = dict.fromkeys(name for name, _ in verdicts)
    disagreements = _disagreements(completions)
    failures = [key for one in completions for key in _failures(one)]
    if failures:
        failures.append("any")
    return Facets(
        tuple(verifiers),
        tuple(key for key in DISAGREEMENTS if key in disagreements),
        tuple(key for key in FAILURES if key in failures),
    )


def _disagreements(completions: Sequence[Row]) -> set[str]:
    rewards = {one["reward"] for one in completions if one["valid"]}
    found = {"rewards"} if len(rewards) > 1 else {"uniform"} if len(completions) > 1 else set()
    for one in completions:
        scores = [v["score"] for v in one["verdicts"].values() if v["score"] is not None]
        if scores and max(scores) - min(scores) >= HALF:
            found.add("verifiers")
        strict: Any = (one.get("loophole") or {}).get("strict")
        if strict is not None and strict < one["reward"] - BELOW:
            found.add("readings")
    return found


def _failures(completion: Row) -> list[str]:
    verdicts, reason = completion["verdicts"], completion["finish_reason"]
    form = verdicts.get(FORM, {}).get("score")
    signs = {
        "fault": any(verdict["fault"] for verdict in verdicts.values()),
        "cut": reason not in ("stop", "abort"),
        "aborted": reason == "abort",
        "unread": completion["answer"] is None,
        "form": form is not None and form < 1.0,
    }
    return [key for key, is_so in signs.items() if is_so]
