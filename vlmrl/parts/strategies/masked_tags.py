"""Text in some tags has no loss: what the policy tells itself in the place of what a tool would return.

Source: Fan et al. 2025, "SSRL: Self-Search Reinforcement Learning", arXiv 2508.10874, and its code
(ray_trainer): the tokens of each `<information>` have no advantage, and count in the mean. Differs: text of
several lines is left out as well, which its regular expression misses; their divergence is not left out, as
there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from vlmrl.parts.strategies.tag_tokens import token_range
from vlmrl.schema import Advantages, Completion, Rewards, Rollouts
from vlmrl.training.strategy import BatchDraw, RunParts, Strategy

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class MaskedTags(Strategy):
    """Tags whose text is not trained on. Example: MaskedTags(tags=("information",))."""

    curves: ClassVar[Mapping[str, str]] = {
        "masked_tags/share": "Share of the tokens that stand in tags whose text is not trained on.",
    }
    reads_completions: ClassVar[bool] = True

    tags: tuple[str, ...] = ("information",)
    """Names of the tags, each as often as it is opened and closed; their marks have no loss either."""

    def __post_init__(self) -> None:
        if not self.tags or not all(map(NAME.fullmatch, self.tags)):
            raise ValueError(f"expected names of tags, such as information, got {self.tags}")

    def select(
        self,
        rollouts: Rollouts,
        rewards: Rewards,
        advantages: Advantages,
        draw: BatchDraw,
        run: RunParts,
    ) -> tuple[Rollouts, Rewards, Advantages]:
        """Give the tokens of the tags the weight 0 in the policy's loss, `token_weight` [P, G, T]."""
        sizes = [c.num_tokens for group in rollouts.completions for c in group]
        if not any(sizes):
            return rollouts, rewards, advantages
        stop_ids, decode = frozenset(run.policy.stop_ids), run.policy.tokenizer.decode
        weight = torch.ones(*rewards.total.shape, max(sizes))
        masked = 0
        for p, group in enumerate(rollouts.completions):
            for g, completion in enumerate(group):
                for start, end in self.ranges(completion, stop_ids, decode):
                    weight[p, g, start:end] = 0.0
                masked += int((weight[p, g] == 0).sum())
        weight = weight * advantages.extra.get("token_weight", 1.0)
        curves = {"masked_tags/share": masked / sum(sizes)}
        extra = {**advantages.extra, "token_weight": weight}
        known = replace(advantages, extra=extra, metrics={**advantages.metrics, **curves})
        return rollouts, rewards, known

    def ranges(
        self,
        completion: Completion,
        stop_ids: Collection[int],
        decode: Callable[[Sequence[int]], str],
    ) -> list[tuple[int, int]]:
        """Return the ranges of tokens of each of the tags, marks included."""
        closed = (f"<{tag}>.*?</{tag}>" for tag in self.tags)
        spans = [m.span() for m in re.finditer("|".join(closed), completion.text, re.DOTALL)]
        return [token_range(completion.token_ids, stop_ids, decode, *span) for span in spans]
