"""What the environment paid for a rollout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vlmrl.schema import Completion, Sample, Verdict
from vlmrl.scoring.verifier import Laws, Verifier


@dataclass(frozen=True)
class WorldReturn(Verifier):
    """The sum of what the environment paid for the turns of a rollout, divided by `scale`, in [-1, 1].

    Only steps that the environment took count: nothing is read from the text. A rollout that never acted
    scores 0. A completion of a source without an environment, or a bare text, is not judged.

    Used by: ours.

    Refuses: whatever a completion says of itself; a sum beyond the range, which is cut to it.

    Source: the return of an episode without a discount, as Gymnasium counts it.

    Example:
    >>> from vlmrl.schema import Completion, Frame, Parsed, Sample, Segment, Truth
    >>> parsed = Parsed(None, None, "none", False, 0.0)
    >>> turns = [Segment((1,), (-0.5,), reward=paid) for paid in (0.0, 0.75)]
    >>> said = Completion("", parsed, Frame(), segments=tuple(turns))
    >>> WorldReturn()(said, Sample("a", "world", (), Truth())).score
    0.75
    """

    low: ClassVar[float] = -1.0
    laws: ClassVar[Laws] = Laws(of_turns=True)

    scale: float = 1.0
    """The sum that scores 1."""

    def __post_init__(self) -> None:
        if self.scale <= 0:
            raise ValueError(f"scale: expected more than 0, got {self.scale}")

    def __call__(self, completion: Completion, sample: Sample) -> Verdict:
        """Add up what the turns earned."""
        paid = [turn.reward for turn in completion.turns if turn.reward is not None]
        if not paid:
            return Verdict.not_applicable("no environment paid for it")
        total = sum(paid)
        return Verdict(min(1.0, max(-1.0, total / self.scale)), {"return": total})
