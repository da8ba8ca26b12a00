"""The contract of an algorithm: advantages from rewards, and a loss from log-probs.

A recipe (`parts/algorithms/grpo.py`: `Grpo`) is a frozen dataclass that fixes the pure functions of
`advantages.py` and `losses.py` to the published defaults; every choice is a field, so a
config can override it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

import torch

from vlmrl.schema import ORIGINS, Advantages, Origin, Rewards, Rollouts, TrainBatch

Pass = Literal["old", "reference", "entropy", "masked_media", "teacher"]
"""A forward over the step's batches before its update."""


@dataclass(frozen=True, slots=True)
class LossInputs:
    """One micro-batch, all [B, T] unless said otherwise; values outside `mask` do not matter.

    `old` equals `new.detach()` when on-policy; `sampling` equals `old`, up to rounding, when the
    engine is exact. `ref` is None when the divergence is off. `advantages` is [B, T] or [B, 1];
    `weights` [B]. The three totals are global: over all micro-batches and ranks.
    """

    new: torch.Tensor
    old: torch.Tensor
    sampling: torch.Tensor
    ref: torch.Tensor | None
    advantages: torch.Tensor
    mask: torch.Tensor
    weights: torch.Tensor
    num_tokens: int
    num_rollouts: int
    max_tokens: int
    progress: float = 0.0
    extra: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """[B, 1] or [B, T] by name, see `MicroBatch.extra`."""
    entropy: torch.Tensor | None = None
    """Entropy of the policy at each token, with gradient; None unless `Objective.entropy_gradient`."""

    def of_origin(self, origin: Origin) -> torch.Tensor:
        """Return which rows are of this origin, bool [B, 1]."""
        if "origin" not in self.extra:
            return torch.full_like(self.mask[:, :1], origin == "policy")
        return self.extra["origin"] == ORIGINS.index(origin)


@dataclass(frozen=True, slots=True)
class LossOutput:
    """`loss` is this micro-batch's share: shares of all micro-batches ADD UP to the batch's loss.

    `metrics` are sums over the micro-batch's loss tokens (the policy divides by `num_tokens`).
    """

    loss: torch.Tensor
    metrics: Mapping[str, torch.Tensor] = field(default_factory=dict)


class Objective(Protocol):
    """What the policy asks of whatever it is trained with, the cold start included."""

    @property
    def entropy_gradient(self) -> bool:
        """Whether `loss` reads `LossInputs.entropy`."""

    def loss(self, inputs: LossInputs) -> LossOutput:
        """Compute the loss of one micro-batch."""


class Algorithm(Objective, Protocol):
    """What the trainer asks of an algorithm."""

    kl: float
    """Weight of the divergence from the reference; 0 means no reference is made or asked."""
    kl_target: float | None
    """Divergence per token to which `kl` adapts; None: it does not."""
    kl_horizon: int
    """Completions in which it changes by at most about a fifth."""
    entropy_bonus: float
    """Weight of the entropy, which is taken off the loss."""
    entropy_target: float | None
    """Entropy per token that `entropy_bonus` is to keep; None: it does not adapt."""
    entropy_step: float
    """What it changes by in a step."""
    dynamic_sampling_batches: int
    """Dynamic sampling: at most this many extra batches are drawn to replace uniform groups."""
    dynamic_sampling_share: float
    """Share of a batch's groups that are informative at which it stops."""
    reads_completions: ClassVar[bool]
    """Whether `shape` or `advantages` read tokens or texts of completions: with several ranks all then
    get those of all, else only lengths, finish reasons, versions and origins (`RemoteCompletion`)."""

    @property
    def targets(self) -> Mapping[str, float]:
        """Return what `kl` and `entropy_bonus` are led to, of those that adapt."""

    @property
    def smallest_group(self) -> int:
        """Fewest completions of a group that can have a gradient."""

    @property
    def takes_parts(self) -> bool:
        """Whether a row may be a part of a completion, with a prompt of its own (`rollout.chunks`)."""

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Which forwards run before the update, beside those that `kl` and several updates ask for.

        old: `MicroBatch.old_logprobs`; reference: `ref_logprobs`; entropy: `extra["entropy"]` of the
        policy; masked_media: `extra["masked_media"]`, its log-probs where most of the media is hidden;
        teacher: `extra["teacher"]`, the log-probs of the config's `teacher`.
        """

    def shape(
        self, rewards: Rewards, rollouts: Rollouts, max_tokens: int, progress: float
    ) -> Rewards:
        """Rewards after shaping by lengths (overlong punishment); most return them unchanged.

        `progress` is the share of training done, in [0, 1), here and below.
        """

    def keep(self, rewards: Rewards, progress: float) -> torch.Tensor:
        """Which groups are worth training on, bool [P]; asked only if `dynamic_sampling_batches` > 0."""

    def advantages(self, rewards: Rewards, rollouts: Rollouts, progress: float) -> Advantages:
        """Advantages [P, G] or [P, G, T]; invalid rollouts take no part in any statistic and get 0."""

    def prepare(self, batches: Sequence[TrainBatch], progress: float) -> Sequence[TrainBatch]:
        """Return the batches after the passes: with other advantages, weights or token weights.

        Every rank calls it with its own rows, so what is of the whole batch is gathered.
        """

    def loss(self, inputs: LossInputs) -> LossOutput:
        """One micro-batch's share of the loss, and sums for its curves."""


def passes_of(algorithm: Algorithm, several: bool = False) -> set[Pass]:
    """Return the forwards before an update, or before `several` on the same rollouts."""
    passes = set(algorithm.passes)
    if algorithm.kl:
        passes.add("reference")
    if several:
        passes.add("old")
    return passes


def needs_reference(algorithm: Algorithm) -> bool:
    """Return whether the algorithm asks for log-probs of the policy as RL began."""
    return "reference" in passes_of(algorithm)
