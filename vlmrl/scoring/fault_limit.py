"""How often each verifier was called, skipped and failed, and when that is too often."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping

from vlmrl.errors import UserError
from vlmrl.schema import Verdict

__all__ = ["FaultLimit"]

WINDOW = 200
"""How many of a verifier's latest calls the limit looks at."""
MIN_CALLS = 20
"""The limit says nothing before a verifier was called this often."""


class FaultLimit:
    """Counts by source and verifier, and the share of recent calls that may fail.

    `counts[source, label]` counts by completion: `calls`, `faults`, `skipped` (did not apply) and
    `kills` (the completion ended its verifier).
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self.counts: dict[tuple[str, str], Counter[str]] = {}
        self._recent: dict[tuple[str, str], deque[str | None]] = {}

    def count(self, source: str, verdicts: Iterable[Mapping[str, Verdict]]) -> None:
        """Count the verdicts on some completions, each by label."""
        for of_one in verdicts:
            for label, verdict in of_one.items():
                key = (source, label)
                counter = self.counts.get(key)
                if counter is None:
                    counter = self.counts[key] = Counter(calls=0, faults=0, skipped=0, kills=0)
                if not verdict.applies:
                    counter["skipped"] += 1
                    continue
                counter["calls"] += 1
                counter["faults"] += verdict.fault is not None
                counter["kills"] += verdict.is_kill
                self._recent.setdefault(key, deque(maxlen=WINDOW)).append(verdict.fault)

    def enforce(self) -> None:
        """Stop where too many recent calls of a verifier failed.

        Raises:
            UserError: more than the share; it names the verifier and what it failed on most often.
        """
        for (source, label), recent in self._recent.items():
            faults = [fault for fault in recent if fault is not None]
            share = len(faults) / len(recent)
            if len(recent) < MIN_CALLS or share <= self._share:
                continue
            commonest, times = Counter(faults).most_common(1)[0]
            raise UserError(
                f"verifier {label!r} failed on {len(faults)} of its last {len(recent)} completions "
                f"of source {source!r}; scoring.fault_limit allows a share of {self._share:g}; "
                f"most often ({times} times): {commonest}"
            )
