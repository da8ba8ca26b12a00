"""What the policy is updated with, and the report of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from vlmrl.schema.prompts import Encoded, Prompt
from vlmrl.schema.rollouts import Advantages, Experts, Rewards, Rollouts
from vlmrl.schema.turns import Suffix

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Some groups of one batch, kept together; B completions, longest has T tokens.

    All tensors are right-padded [B, T] unless said otherwise; `prompts` [N], `group` [B] names each
    row's prompt by its index in `prompts`. Of a completion of several turns, T counts all that follows
    the prompt: observations are places outside of `mask`, with zeros in the other tensors.
    """

    prompts: tuple[Prompt, ...]
    group: torch.Tensor
    token_ids: torch.Tensor
    mask: torch.Tensor
    """bool: True on completion tokens that carry loss."""
    sampling_logprobs: torch.Tensor
    advantages: torch.Tensor
    """[B, T] or [B, 1]."""
    weights: torch.Tensor
    """[B]."""
    old_logprobs: torch.Tensor | None = None
    """The trainer's own log-probs before the update; None means on-policy (use detached new ones)."""
    ref_logprobs: torch.Tensor | None = None
    extra: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """What the loss is to know of a row, [B, 1] or [B, T] by name: `Advantages.extra`; the passes'
    `entropy` and `masked_media`; where the policy did not sample all rows, `origin` [B, 1] and the
    sampling log-probs of those rows, `stored_logprobs` [B, T]; and where rows are chunks of completions, the
    loss tokens of the whole, `completion_tokens` [B, 1]."""
    suffixes: tuple[Suffix | None, ...] = ()
    """For each row what follows its prompt, None where that is text of the policy alone; empty where
    it is so in all rows."""
    experts: tuple[Experts | None, ...] = ()
    """For each row the experts that are to be chosen again; empty where nothing is known of any."""

    @property
    def rerouted(self) -> MicroBatch:
        """Return it for another model, or another view of the prompts: it chooses experts itself."""
        return replace(self, experts=()) if self.experts else self

    @property
    def encoded(self) -> tuple[Encoded, ...]:
        """Return all that has media or could have: the prompts, then the suffixes with media."""
        prompts = tuple(prompt.encoded for prompt in self.prompts)
        return prompts + tuple(s.encoded for s in self.suffixes if s and s.encoded.tensors)

    @property
    def shown(self) -> list[list[int]]:
        """Return for each row which of `encoded` follow its prompt, at most one."""
        if not self.suffixes:
            return [[] for _ in self.group]
        count, shown = len(self.prompts), []
        for suffix in self.suffixes:
            has_media = bool(suffix and suffix.encoded.tensors)
            shown.append([count] if has_media else [])
            count += has_media
        return shown

    @property
    def turns(self) -> torch.Tensor | None:
        """Return [B, T]: the policy's turn, from 0, of each token that carries loss, -1 elsewhere.

        None where all rows have a single turn.
        """
        if not self.suffixes:
            return None
        turns = self.mask.long() - 1
        for row, suffix in enumerate(self.suffixes):
            if suffix is not None:
                turns[row, : len(suffix.turns)] = turns.new_tensor(suffix.turns)
        return turns

    def follow(self, row: int, length: int) -> torch.Tensor:
        """Return the positions [A, length] of the first tokens that follow a row's prompt."""
        suffix = self.suffixes[row] if self.suffixes else None
        if suffix is not None:
            return suffix.encoded.position_ids[:, :length]
        prompt = self.prompts[int(self.group[row])].encoded
        steps = self.group.new_ones(length).cumsum(0) - 1
        return (prompt.next_position + steps).expand(len(prompt.position_ids), -1)

    @property
    def lengths(self) -> torch.Tensor:
        """Return [B]: tokens up to the last one that carries loss; later tokens cannot matter."""
        steps = self.mask.new_ones(self.mask.shape).cumsum(1)
        return (steps * self.mask).amax(1)


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """Micro-batches with denominators fixed before the first forward, over ALL ranks.

    `num_tokens` counts loss tokens, `num_rollouts` counts kept completions: the update is the same
    however the batch is split.
    """

    micro: tuple[MicroBatch, ...]
    num_tokens: int
    num_rollouts: int
    max_tokens: int
    """The configured completion limit, for constant-length aggregation (Dr.GRPO)."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """One line of metrics.jsonl, flat: `reward/mean`, `source/<name>/box_iou`, `time/generate` ..."""

    step: int
    metrics: Mapping[str, float]
    rollouts: Rollouts
    rewards: Rewards
    advantages: Advantages
