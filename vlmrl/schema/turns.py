"""A completion of several turns: what the policy wrote, what it was shown in between, and the calls.

Nothing here is ever rendered or tokenized again: the ids of all segments, in order, are what the engine
saw and sampled. Only segments of the policy carry loss, count as length, and are graded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vlmrl.schema.geometry import Box
from vlmrl.schema.media import Decoded
from vlmrl.schema.prompts import Encoded

CallOutcome = Literal["ok", "refused", "fault"]
"""`ok`: the tool answered. `refused`: it told the policy why not, which is an observation. `fault`: the
tool itself failed; the rollout is masked, neither paid nor punished."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool, in OpenAI's form, and what came of it.

    Example: Call("crop", {"bbox_2d": [0, 0, 28, 28]}, "ok", seconds=0.004)
    """

    name: str
    arguments: Mapping[str, Any] = field(hash=False)
    """A JSON object as the policy wrote it: places are in the model's space."""
    outcome: CallOutcome = "ok"
    note: str = ""
    """Why it was refused or failed; otherwise what a reader of the report is to know."""
    seconds: float = 0.0
    box: Box | None = None
    """Where what it returned first was cut from, in the unit square of `image`; None: it was not cut."""
    image: int | None = None
    """Number of the image that `box` is in, from 1, in the order in which images were shown."""
    found: tuple[str, ...] = ()
    """Names of what a search returned, the best first; the policy need not be shown them."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a completion: what the policy wrote, or an observation that it was shown.

    Segments alternate: the first and the last are the policy's. One of the policy has a log-prob for
    each token and no media; an observation has neither log-probs nor versions, and as many media as
    its `token_ids` have placeholders.
    """

    token_ids: tuple[int, ...]
    """Compact: ONE placeholder for each medium. The policy's include its stop token."""
    logprobs: tuple[float, ...] = ()
    """Sampling log-probs, in nats; empty for an observation."""
    media: tuple[Decoded, ...] = ()
    """Of an observation, in the order of the placeholders."""
    versions: tuple[tuple[int, int], ...] = ()
    """(policy version, number of tokens) runs, as in `Completion.versions`."""
    text: str = ""
    """What was written or shown, for people and verifiers; without the stop token."""
    calls: tuple[Call, ...] = ()
    """The calls that this segment of the policy made and that were answered or failed."""
    reward: float | None = None
    """What an environment paid for this segment of the policy; None: nothing is known of it."""
    metrics: Mapping[str, float] = field(default_factory=dict, hash=False)
    """What an environment measured after this segment of the policy; `done`: 1 if the world ended."""
    shared: bool = False
    """Whether the rollout has it from another one of its group, off which it branched."""

    def __post_init__(self) -> None:
        if len(self.logprobs) not in (0, len(self.token_ids)):
            raise ValueError(
                f"a segment: expected {len(self.token_ids)} log-probs or none, got {len(self.logprobs)}"
            )
        if self.logprobs and self.media:
            raise ValueError("a segment of the policy: expected no media")

    @property
    def of_policy(self) -> bool:
        """Return whether the policy wrote it."""
        return bool(self.logprobs)


@dataclass(frozen=True, slots=True)
class Suffix:
    """All that follows a prompt, in the form that the trainer's forward takes.

    `turns` has one number for each of `encoded.ids`: which of the policy's segments, counted from 0,
    the id belongs to; -1 for the ids of observations, which carry no loss.
    """

    encoded: Encoded
    """`encoded.position_ids` begin at the prompt's `next_position`; `tensors` are those of the
    observations' media."""
    turns: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.turns) != len(self.encoded.ids):
            raise ValueError(
                f"a suffix of {len(self.encoded.ids)} ids: expected as many turns, got {len(self.turns)}"
            )
