"""Decide whether a completion thinks, or leaves its thought empty, in the layout that allows both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from vlmrl.answers import templates
from vlmrl.schema import Completion, Sample, Verdict
from vlmrl.scoring.verifier import Laws, Verifier


@dataclass(frozen=True)
class ThinkOrNot(Verifier):
    r"""Score 1 if the completion is laid out as `<think>..</think><answer>..</answer>`, its thought free.

    `mode`: `free` lets the thought be empty (`<think>\n\n</think>`) or not; `think` demands one;
    `no_think` demands that it is empty or absent. The part `direct` is 1 where nothing was thought,
    so that its curve shows how often the policy skips thinking.

    Published sets: TON: the default (no reward for skipping: the saving comes from exploration);
    No-Thinking-RL, Med-R1 nothink: `mode: no_think`.

    Refuses: an empty answer, a thought that is never closed, a tag twice.

    Source: TON, arXiv 2505.16854; CLS-RL, arXiv 2503.16188.

    Example:
    >>> from vlmrl.schema import Truth
    >>> from vlmrl.scoring.verifier import judge
    >>> text = "<think>\n\n</think><answer>7</answer>"
    >>> judge(ThinkOrNot(), text, Truth(), "think_or_not").parts
    {'direct': 1.0}
    """

    laws: ClassVar[Laws] = Laws(
        best="<think>why</think><answer>7</answer>",
        junk="ANSWER</answer>",
        options=({}, {"mode": "think"}),
        template="think_or_not",
    )

    mode: Literal["free", "think", "no_think"] = "free"
    r"""`free`: the thought may be empty (`<think>\n\n</think>`) or not; `think`: there must be one;
    `no_think`: it must be empty or absent."""

    def __call__(self, completion: Completion, sample: Sample) -> Verdict:
        """Judge the layout and the mode of one completion."""
        parsed = completion.parsed
        if not parsed.well_formed:
            parsed = templates.split(completion.text, "think_or_not")
        if not parsed.well_formed:
            return Verdict(0.0, note="does not match the template")
        direct = parsed.mode == "direct"
        allowed = self.mode == "free" or direct == (self.mode == "no_think")
        return Verdict(
            float(allowed), parts={"direct": float(direct)}, note="" if allowed else parsed.mode
        )
