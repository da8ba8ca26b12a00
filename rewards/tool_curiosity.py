"""Reward trying tools while the group rarely does, and charge for using too many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.answers import parsing
from vlmrl.schema import Completion, Sample, Verdict
from vlmrl.scoring.verifier import GroupVerifier


@dataclass(frozen=True)
class ToolCuriosity(GroupVerifier):
    """A bonus for using a tool where the group rarely does, less a charge for many calls.

    curiosity max(0, wanted - r) if a tool is called, less charge max(0, n - free). r is the share
    of the group's completions that call a tool, n a completion's number of calls. In [-1, 1].

    Of a completion with several turns, calls are those that were run: one that a tool answered counts
    for the bonus, a refused one is only charged. Of a completion with a single turn, calls are its
    `<tool_call>` blocks: one that holds a JSON object with a `name` counts for the bonus.

    Published sets: PixelReasoner (VerlTool): the defaults.

    Refuses: empty blocks, blocks without a JSON object or without the tool's name, a closing tag
    before the opening one; they earn no bonus, but are charged.

    Source: Pixel Reasoner, arXiv 2505.15966, eq. 4-6.

    Example:
    >>> from vlmrl.scoring.verifier import judge_group
    >>> words = ['<tool_call>{"name": "zoom"}</tool_call>'] + ["a"] * 3
    >>> [round(v.score, 3) for v in judge_group(ToolCuriosity(), words, [1.0] * 4)]
    [0.025, 0.0, 0.0, 0.0]
    """

    low: ClassVar[float] = -1.0

    curiosity: float = 0.5
    """Weight of the bonus."""
    wanted: float = 0.3
    """Share of a group that should call a tool; the bonus is 0 from there on."""
    charge: float = 0.05
    """What each call beyond the free ones costs."""
    free: int = 1
    """Calls of a completion that cost nothing."""
    tag: str = "tool_call"
    """Name of the tag around a call."""

    def __post_init__(self) -> None:
        """Refuse weights that lead out of the range."""
        if not (0 <= self.curiosity <= 1 and 0 <= self.wanted <= 1 and self.charge >= 0):
            raise ValueError(
                "expected curiosity and wanted in [0, 1] and a charge of at least 0, got "
                f"{self.curiosity}, {self.wanted} and {self.charge}"
            )

    def judge(
        self, completions: Sequence[Completion], sample: Sample, rewards: Sequence[float | None]
    ) -> list[Verdict]:
        """Count the calls of the group."""
        worth = [self._calls(completion) for completion in completions]
        calls = [any(of_one) for of_one in worth]
        bonus = self.curiosity * max(0.0, self.wanted - sum(calls) / len(calls))
        return [
            Verdict(max(-1.0, bonus * called - self._charge(len(of_one))), {"calls": len(of_one)})
            for called, of_one in zip(calls, worth, strict=True)
        ]

    def _calls(self, completion: Completion) -> list[bool]:
        """Return for each call whether it counts for the bonus."""
        if completion.segments:
            return [call.outcome == "ok" for call in completion.calls]
        return [_is_call(inside) for inside in self._blocks(completion.text)]

    def _blocks(self, text: str) -> list[str]:
        """Return what is inside each block, in order."""
        pieces = text.split(f"<{self.tag}>")[1:]
        closed = [piece.partition(f"</{self.tag}>") for piece in pieces]
        return [inside for inside, mark, _ in closed if mark]

    def _charge(self, num_calls: int) -> float:
        return self.charge * max(0, num_calls - self.free)


def _is_call(inside: str) -> bool:
    call, _ = parsing.fields(inside)
    name = call.get("name") if call else None
    return isinstance(name, str) and bool(name.strip())
