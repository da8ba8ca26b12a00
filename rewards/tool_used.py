"""Decide whether tools answered calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vlmrl.schema import Completion, Sample, Verdict
from vlmrl.scoring.verifier import Laws, Verifier


@dataclass(frozen=True)
class ToolUsed(Verifier):
    """Score 1 if tools answered at least `most` calls of the rollout, else the share of these, 0 for none.

    Calls are those that were run: one that was refused, or only written, counts for nothing. By itself
    it pays for calls that are of no use; with `gated_by: {accuracy: 0.5}` only beside a right answer.

    Published sets: DeepEyes: weight 1.2, gated by an accuracy above 0.5. VRAG-RL: weight 0, `tools:
    [search]`, as a gate. VTool-R1 (a variant): weight 0.5, gated by the accuracy. IKEA: `most: 3`, by which
    a right answer is paid less.

    Refuses: `<tool_call>` blocks in an answer or a thought, refused calls, a source without tools.

    Source: Zheng et al. 2025, "DeepEyes", arXiv 2505.14362, and the reward of its repository.

    Differs: DeepEyes counts images in the decoded text of the rollout.

    Example:
    >>> from vlmrl.schema import Truth
    >>> from vlmrl.scoring.verifier import judge
    >>> judge(ToolUsed(), '<tool_call>{"name": "crop"}</tool_call>', Truth()).score
    0.0
    """

    laws: ClassVar[Laws] = Laws(options=({}, {"tools": ["search"]}), of_turns=True)

    tools: tuple[str, ...] = ()
    """Names of the functions that count; empty: all."""
    most: int = 1
    """Answered calls that score 1; fewer score their share."""

    def __post_init__(self) -> None:
        """Refuse to pay for no call."""
        if self.most < 1:
            raise ValueError(f"most: expected at least 1, got {self.most}")

    def __call__(self, completion: Completion, sample: Sample) -> Verdict:
        """Look for an answered call."""
        ran = [c for c in completion.calls if c.outcome == "ok" and self._counts(c.name)]
        return Verdict(min(1.0, len(ran) / self.most), {"calls": len(ran)})

    def _counts(self, name: str) -> bool:
        return not self.tools or name in self.tools
