"""Keep both ways of answering, with and without a thought, alive in a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlmrl.schema import Completion, Sample, Verdict
from vlmrl.scoring.verifier import GroupVerifier


@dataclass(frozen=True)
class ThinkBalance(GroupVerifier):
    """1 unless a completion's mode is more common in its group than wanted; then less, down to 0.

    With d the share of completions that answer without a thought and `direct` the share wanted:
    where d > direct a direct one gets (1 - d) / (1 - direct), where d < direct a thinking one gets
    d / direct. A completion without an answer gets 0 and is not counted. The part `direct` is d.

    It pays for a mode, not for being right nor for thinking: a thought of one full stop counts as
    thinking. Keep its weight below that of the verifiers that grade the answer.

    Used by: vlmrl.

    Source: ours; TON (arXiv 2505.16854) leaves the balance to exploration and reports the share.

    Example:
    >>> from vlmrl.scoring.verifier import judge_group
    >>> words = ["<think>x</think>a", "<think>x</think>a", "<think>x</think>a", "a"]
    >>> [v.score for v in judge_group(ThinkBalance(), words, [1.0] * 4)]
    [0.5, 0.5, 0.5, 1.0]
    """

    direct: float = 0.5
    """The target share of completions without a thought, in [0, 1]."""

    def __post_init__(self) -> None:
        """Refuse shares that leave one mode out: that is the verifier think_or_not."""
        if not 0 < self.direct < 1:
            raise ValueError(f"expected direct between 0 and 1, got {self.direct}")

    def judge(
        self, completions: Sequence[Completion], sample: Sample, rewards: Sequence[float | None]
    ) -> list[Verdict]:
        """Compare the modes of the group."""
        modes = [c.parsed.mode if c.answer else "none" for c in completions]
        counted = [mode for mode in modes if mode != "none"]
        share = counted.count("direct") / len(counted) if counted else 0.0
        scores = {
            "none": 0.0,
            "direct": min(1.0, (1 - share) / (1 - self.direct)),
            "think": min(1.0, share / self.direct),
        }
        return [Verdict(scores[mode], {"direct": share}) for mode in modes]
