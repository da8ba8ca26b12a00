"""Decide whether a tool answered a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vlmrl.schema import Completion, Sample, Verdict
from vlmrl.scoring.verifier import Laws, Verifier


@dataclass(frozen=True)
class ToolUsed(Verifier):
    """Score 1 if a tool answered at least one call of the rollout, else 0.

    Calls are those that were run: one that was refused, or only written, counts for nothing. By itself
    it pays for calls that are of no use; with `gated_by: {accuracy: 0.5}` only beside a right answer.

    Published sets: DeepEyes: weight 1.2, gated by an accuracy above 0.5. VRAG-RL: weight 0, `tools:
    [search]`, as a gate. VTool-R1 (a variant): weight 0.5, gated by the accuracy.

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

    def __call__(self, completion: Completion, sample: Sample) -> Verdict:
        """Look for an answered call."""
        ran = [c for c in completion.calls if c.outcome == "ok" and self._counts(c.name)]
        return Verdict(float(bool(ran)), {"calls": len(ran)})

    def _counts(self, name: str) -> bool:
        return not self.tools or name in self.tools
