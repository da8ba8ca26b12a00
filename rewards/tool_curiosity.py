"""Rewards trying tools while the group rarely does, and charges for using too many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.schema import Completion, Sample, Verdict
from vlmrl.scoring.verifier import GroupVerifier


@dataclass(frozen=True)
class ToolCuriosity(GroupVerifier):
    """A bonus for using a tool where the group rarely does, less a charge for many calls.

    curiosity max(0, wanted - r) if a tool is used, less charge max(0, n - free).
    r is the share of the group's completions that use a tool, n a completion's number of calls:
    whole `<tool_call>` blocks (`tag`). In [-1, 1].

    Published sets: PixelReasoner (VerlTool): the defaults.

    Source: Pixel Reasoner, arXiv 2505.15966, eq. 4-6.

    Example:
    >>> from vlmrl.scoring.verifier import judge_group
    >>> words = ["<tool_call>{}</tool_call>"] + ["a"] * 3
    >>> [round(v.score, 3) for v in judge_group(ToolCuriosity(), words, [1.0] * 4)]
    [0.025, 0.0, 0.0, 0.0]
    """

    low: ClassVar[float] = -1.0

    curiosity: float = 0.5
    wanted: float = 0.3
    charge: float = 0.05
    free: int = 1
    tag: str = "tool_call"

    def __post_init__(self) -> None:
        """Refuse weights that lead out of the range."""
        if not (0 <= self.curiosity <= 1 and 0 <= self.wanted <= 1 and self.charge >= 0):
            raise ValueError("curiosity and wanted are in [0, 1], charge is not negative")

    def judge(
        self, completions: Sequence[Completion], sample: Sample, rewards: Sequence[float | None]
    ) -> list[Verdict]:
        """Count the calls of the group."""
        opened, closed = f"<{self.tag}>", f"</{self.tag}>"
        calls = [min(c.text.count(opened), c.text.count(closed)) for c in completions]
        share = sum(n > 0 for n in calls) / len(calls)
        bonus = self.curiosity * max(0.0, self.wanted - share)
        scores = [bonus * (n > 0) - self.charge * max(0, n - self.free) for n in calls]
        return [
            Verdict(max(-1.0, s), {"calls": float(n)}) for s, n in zip(scores, calls, strict=True)
        ]
