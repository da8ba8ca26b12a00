"""Completions, and what verifiers, scorer and algorithm make of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, get_args

import numpy as np

from vlmrl.schema.geometry import Frame
from vlmrl.schema.prompts import PromptBatch
from vlmrl.schema.turns import Call, Segment, Suffix

if TYPE_CHECKING:
    import torch


# --------------------------------------------------------------------------------------------------
# The experts that an engine chose for the tokens of a rollout, for the trainer to choose them again.


def expert_dtype(num_experts: int) -> np.dtype[np.unsignedinteger]:
    """Return the smallest dtype for the numbers of experts; its largest value says "not known"."""
    return np.dtype(np.uint8 if num_experts < np.iinfo(np.uint8).max else np.uint16)


@dataclass(frozen=True, slots=True, eq=False)
class Experts:
    """Numbers of the experts of each token in each layer that has any, of an `expert_dtype`.

    Where a number is the dtype's largest, the trainer makes its own choice.
    """

    prompt: np.ndarray
    """[P, layers, k]; completions of a group may hold the same array."""
    written: np.ndarray
    """[F, layers, k] of the first tokens that follow the prompt; an engine computes nothing of the last."""

    def then(self, later: Experts) -> Experts:
        """Return the choices of a rollout after one more turn; `later` was asked for with all before it.

        What was chosen when a token was sampled counts, not what was when it was read again.
        """
        known = len(self.prompt) + len(self.written)
        written = (self.written, later.prompt[known:], later.written)
        return Experts(self.prompt, np.concatenate(written))


# --------------------------------------------------------------------------------------------------


FinishReason = Literal["stop", "length", "abort", "turns", "budget"]
"""`length`: cut at the limit of tokens. `abort`: a fault, not the policy's doing. Of several turns also
`turns`: the last one allowed asks for a tool; `budget`: an observation would not fit."""
CUT: tuple[FinishReason, ...] = ("length", "turns", "budget")
"""The reasons that say that the policy did not come to an end."""
Origin = Literal[
    "policy", "hint", "refinement", "rehearsal", "demonstration", "distortion", "replay"
]
"""Who wrote a completion: the policy from this very prompt; the policy with a hint; the policy after a
critique, or told to think again; the model as RL began; somebody else; the policy that saw the media
distorted, or was asked in other words; the policy from this very prompt in an earlier step."""
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
    """What follows the prompt, for the forward; None where that is `token_ids` alone, or in `chunks`."""
    chunks: tuple[Suffix, ...] = ()
    """Of a completion in chunks what follows the prompt in each: what was carried over, and a turn."""
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
    def sequences(self) -> tuple[Completion, ...]:
        """Return what follows the prompt in the forward, each by itself: it, or its chunks."""
        if not self.chunks:
            return (self,)
        return tuple(
            replace(
                self,
                token_ids=turn.token_ids,
                logprobs=turn.logprobs,
                versions=turn.versions,
                segments=(),
                suffix=chunk,
                chunks=(),
            )
            for turn, chunk in zip(self.turns, self.chunks, strict=True)
        )

    @property
    def following_ids(self) -> tuple[int, ...]:
        """Return all ids that follow the prompt, of one that is a single sequence."""
        return self.token_ids if self.suffix is None else self.suffix.encoded.ids

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
        return replace(self, segments=segments, suffix=None, chunks=(), experts=None)


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


# --------------------------------------------------------------------------------------------------
# Completions and verdicts of another rank: the numbers that every rank knows of them, nothing else.


class ElsewhereError(RuntimeError):
    """A part asked for what another rank alone knows."""


class _Remote:
    """What stands for a value of rank `_home`: its numbers are known, other fields refused."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    KNOWN: ClassVar[tuple[str, ...]]
    """The attributes that make up its numbers."""
    _home: int

    def _note(self, *numbers: Any) -> None:
        for name, value in zip(self.KNOWN, numbers, strict=True):
            object.__setattr__(self, name, value)

    @property
    def _numbers(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.KNOWN)

    def __getattr__(self, name: str) -> NoReturn:
        if name not in self.__dataclass_fields__:
            raise AttributeError(name)
        kind = type(self).__name__.removeprefix("Remote").lower()
        raise ElsewhereError(
            f"{name!r} of this {kind} is known to rank {self._home} alone. A strategy or an "
            "algorithm that reads what other ranks wrote says so: `reads_completions: ClassVar[bool] "
            "= True`; verdicts beside their scores are read at home (`rank_shards.is_here`)"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self._numbers}"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._numbers == other._numbers

    def __hash__(self) -> int:
        return hash(self._numbers)


class RemoteCompletion(_Remote, Completion):
    """A completion as ranks that are not its prompt's home know it: it stands in its place in a group.

    Its length, finish reason, versions and origin are known. Whatever else is asked of it raises an
    `ElsewhereError`.
    """

    __slots__ = ("_home", "_num_tokens")
    KNOWN = ("_home", "_num_tokens", "finish_reason", "versions", "origin")
    _num_tokens: int

    def __init__(
        self,
        home: int,
        num_tokens: int,
        finish_reason: FinishReason,
        versions: tuple[tuple[int, int], ...],
        origin: Origin = "policy",
    ) -> None:
        """Note what is known of a completion of rank `home`; the other fields stay unset."""
        self._note(home, num_tokens, finish_reason, versions, origin)

    @property
    def num_tokens(self) -> int:
        """Return how many tokens the policy wrote."""
        return self._num_tokens

    def with_origin(self, origin: Origin) -> RemoteCompletion:
        """Return it as one that was written by `origin`."""
        return RemoteCompletion(
            self._home, self._num_tokens, self.finish_reason, self.versions, origin
        )


class RemoteVerdict(_Remote, Verdict):
    """A verdict as ranks know it that did not judge: score, fault, whether it applies, whether it killed.

    `parts`, `answer` and `note` raise an `ElsewhereError`.
    """

    __slots__ = ("_home", "_is_kill")
    KNOWN = ("_home", "score", "applies", "fault", "_is_kill")
    _is_kill: bool

    def __init__(
        self, home: int, score: float | None, applies: bool, fault: str | None, is_kill: bool
    ) -> None:
        """Note what is known of a verdict of rank `home`; the other fields stay unset."""
        self._note(home, score, applies, fault, is_kill)

    @property
    def is_kill(self) -> bool:
        """Return whether the completion ended its verifier."""
        return self._is_kill
