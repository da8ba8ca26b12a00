"""Completions, and what verifiers, scorer and algorithm make of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from vlmrl.schema.experts import Experts
from vlmrl.schema.geometry import Frame
from vlmrl.schema.prompts import PromptBatch
from vlmrl.schema.turns import Call, Segment, Suffix

if TYPE_CHECKING:
    import torch

__all__ = [
    "CUT",
    "KILLED",
    "ORIGINS",
    "Advantages",
    "Completion",
    "FinishReason",
    "Origin",
    "Parsed",
    "Rewards",
    "Rollouts",
    "Verdict",
]

FinishReason = Literal["stop", "length", "abort", "turns", "budget"]
"""`length`: cut at the limit of tokens. `abort`: a fault, not the policy's doing. Of several turns also
`turns`: the last one allowed asks for a tool; `budget`: an observation would not fit."""
CUT: tuple[FinishReason, ...] = ("length", "turns", "budget")
"""The reasons that say that the policy did not come to an end."""
Origin = Literal["policy", "hint", "refinement", "rehearsal", "demonstration"]
"""Who wrote a completion: the policy from this very prompt; the policy with a hint; the policy after a
critique; the model as RL began; somebody else."""
ORIGINS: tuple[Origin, ...] = get_args(Origin)
"""All origins; in tensors an origin is its index, so 0 is the policy."""
KILLED = "killed_grader"
"""In `parts` of the verdict on a completion that hangs or kills its verifier, twice."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A completion's text split by its template (`templates.split`).

    `answer` is None when there is no well-formed answer; `thought` is None when there is no thought
    tag, "" when it is empty. `mode` is "think", "direct" (empty or absent thought) or "none".
    """

    answer: str | None
    thought: str | None
    mode: Literal["think", "direct", "none"]
    well_formed: bool
    """True if the whole text matches the template."""
    tag_share: float
    """Share of the template's tags that occur exactly once, in [0, 1]."""
    spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Character range of each tag's content."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Completion:
    """The result of one generation, or of several turns of it. Token ids are those that were sampled,
    never re-tokenised.

    `logprobs` are the sampling log-probabilities of `token_ids`, one each. The stop token, if any, is
    the last id; `text` leaves it out. With several turns `token_ids`, `logprobs` and `versions` are what
    the policy wrote in all of them, joined; `text` and `parsed` are those of the last one.
    """

    text: str
    parsed: Parsed
    frame: Frame
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    finish_reason: FinishReason = "stop"
    versions: tuple[tuple[int, int], ...] = ()
    """(policy version, number of tokens) runs; one run unless weights changed in flight."""
    origin: Origin = "policy"
    """What the policy did not sample from this prompt has no part in pass rates and importance weights."""
    segments: tuple[Segment, ...] = ()
    """The policy's turns and the observations between them; empty where there is a single turn."""
    suffix: Suffix | None = None
    """What follows the prompt, for the forward; None where that is `token_ids` alone."""
    experts: Experts | None = field(default=None, compare=False, repr=False)
    """With `model.router_replay`: the experts that the engine chose; None: nothing is known of them."""
    tag_tokens: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By tag, the range of the tokens from its opening to its closing mark, where the strategy `tag_tokens`
    has found it."""

    @property
    def turns(self) -> tuple[Segment, ...]:
        """Return what the policy wrote, turn by turn."""
        if not self.segments:
            return (Segment(self.token_ids, self.logprobs, (), self.versions, self.text),)
        return tuple(segment for segment in self.segments if segment.of_policy)

    @property
    def calls(self) -> tuple[Call, ...]:
        """Return the calls that were run, in order; empty where the source has no tools."""
        return tuple(call for segment in self.segments for call in segment.calls)

    @property
    def num_tokens(self) -> int:
        """Return how many tokens the policy wrote."""
        return len(self.token_ids)

    @property
    def truncated(self) -> bool:
        """Return whether a limit ended it."""
        return self.finish_reason in CUT

    @property
    def answer(self) -> str | None:
        """Return the answer, stripped; None if there is none."""
        return self.parsed.answer

    def with_origin(self, origin: Origin) -> Completion:
        """Return it as one that was written by `origin`."""
        return replace(self, origin=origin)

    def without_media(self) -> Completion:
        """Return it without what it was shown and its experts, which stay with its prompt's home."""
        segments = tuple(replace(segment, media=()) for segment in self.segments)
        return replace(self, segments=segments, suffix=None, experts=None)


@dataclass(frozen=True, slots=True)
class Rollouts:
    """P prompts with G completions each: `completions[p][g]`.

    With several ranks those of another rank are `RemoteCompletion`s, unless a part of the run reads them.
    """

    batch: PromptBatch
    completions: tuple[tuple[Completion, ...], ...]
    version: int = 0
    max_tokens: int = 0
    """The limit of a completion with which they were sampled; 0: not known."""

    @property
    def shape(self) -> tuple[int, int]:
        """Return (P, G)."""
        return len(self.completions), len(self.completions[0]) if self.completions else 0


# ------------------------------------------------------------------------------------- rewards


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of one verifier on one completion.

    `score` is in the verifier's range, or None if the verifier itself failed (`fault` says why) or
    does not apply to this sample (`applies` is False). A fault is never a wrong answer.

    Example: Verdict(0.62, parts={"iou": 0.62}, answer=(Box(.1, .1, .3, .4),), note="")
    """

    score: float | None
    parts: Mapping[str, float] = field(default_factory=dict)
    answer: Any = None
    note: str = ""
    applies: bool = True
    fault: str | None = None

    @property
    def is_kill(self) -> bool:
        """Return whether the completion ended its verifier."""
        return KILLED in self.parts

    @classmethod
    def not_applicable(cls, note: str = "") -> Verdict:
        """Return a verdict that leaves the weights to the verifiers that do apply to the sample."""
        return cls(None, note=note, applies=False)

    @classmethod
    def failed(cls, reason: str) -> Verdict:
        """Return a verdict that says that the verifier, not the completion, went wrong."""
        return cls(None, fault=reason)


@dataclass(frozen=True, slots=True)
class Rewards:
    """The scores of the rollouts.

    `total` is [P, G] float32 with 0 where `valid` [P, G] bool is False (a fault, or a completion that is
    masked from the loss). `verdicts[p][g]` maps the verifier's name in the config to its verdict.
    """

    total: torch.Tensor
    valid: torch.Tensor
    verdicts: tuple[tuple[Mapping[str, Verdict], ...], ...]

    def component(self, name: str) -> list[float]:
        """Return all finite scores that one verifier gave, for its curve."""
        rows = (v[name] for group in self.verdicts for v in group if name in v)
        return [v.score for v in rows if v.applies and v.score is not None]


@dataclass(frozen=True, slots=True)
class Advantages:
    """Advantages (0 where not kept) and which rollouts take part in the loss, kept [P, G] bool.

    `values` are [P, G], or [P, G, T] where tokens, spans or turns differ; T is the longest completion.
    `weights` [P, G] are sample weights (difficulty, data column) that multiply the loss.
    `metrics` are values that the algorithm logs, e.g. the share of uniform groups.
    `extra` [P, G] or [P, G, T] is what the loss is to know of a row, by name, e.g. `correct`,
    `token_weight`.
    """

    values: torch.Tensor
    kept: torch.Tensor
    weights: torch.Tensor
    metrics: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, torch.Tensor] = field(default_factory=dict)
