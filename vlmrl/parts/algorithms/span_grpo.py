"""GRPO with advantages of spans: what a verifier says of one tag credits the tokens of that tag alone.

Source: Yang et al. 2025, "HumanOmniV2", arXiv 2506.21277: the advantages of format and accuracy act on
all tokens, those of the judged context and of the judged logic on the tokens of `<context>` and of
`<think>` besides; r - mean, GRPO's clip, a mean over tokens. Differs: the code computes the advantage of a
span from the rewards of format and accuracy, which seems an oversight; a completion without the tag, or
whose verifier failed, gets none of that tag's advantage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch

from vlmrl.algorithms.advantages import uniform
from vlmrl.algorithms.losses import Aggregation
from vlmrl.algorithms.recipes import OF_GROUPS, Recipe
from vlmrl.errors import UserError
from vlmrl.parts.algorithms.gdpo import scores_by_verifier
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.plugins import nearest
from vlmrl.schema import Advantages, Completion, Rewards, Rollouts


@dataclass(frozen=True, slots=True)
class SpanGrpo(Grpo):
    """GRPO that credits tags of their own. Example: SpanGrpo(spans={"context": "context"}).

    Needs the strategy `tag_tokens`. A verifier of `spans` has weight 0 in `rewards`, unless it is to
    count for the whole completion as well.
    """

    reads_completions: ClassVar[bool] = True

    scale: Literal["std", "batch", "none"] = "none"
    aggregation: Aggregation = "token"
    spans: Mapping[str, str] = field(default_factory=dict)
    """Name of a reward -> the tag that its advantage acts on: {context: context, logic: think}."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weight of such a reward's advantage by its name, 1 where not named."""

    def __post_init__(self) -> None:
        Grpo.__post_init__(self)
        for name in self.weights:
            if name not in self.spans:
                known = nearest(name, list(self.spans))
                raise ValueError(f"weights: expected names of spans, got {name!r}{known}")

    @property
    def only_uniform_is_silent(self) -> bool:
        """Return whether equal rewards have no gradient: with spans they may have one."""
        return not self.spans

    def estimate(self, rewards: Rewards) -> torch.Tensor:
        """Return each reward against the baseline, [P, G]; exactly 0 in a group of equal ones."""
        values = Grpo.estimate(self, rewards)
        if self.baseline not in OF_GROUPS:
            return values
        return values.masked_fill(uniform(rewards.total, rewards.valid)[:, None], 0.0)

    def keep(self, rewards: Rewards, progress: float = 0.0) -> torch.Tensor:
        """Return which groups have a gradient, by the whole or by a span, bool [P]."""
        kept = (self.estimate(rewards) != 0).any(-1)
        for values in self._of_spans(rewards).values():
            kept = kept | (values != 0).any(-1)
        return kept

    def advantages(self, rewards: Rewards, rollouts: Rollouts, progress: float = 0.0) -> Advantages:
        """Return the advantage of the whole plus those of the tags that a token stands in, [P, G, T].

        [P, G] without spans.

        Raises:
            UserError: a reward of `spans` that no completion has, or no token of a tag is known.
        """
        plain = Recipe.advantages(self, rewards, rollouts, progress)
        parts = self._of_spans(rewards)
        flat = [c for group in rollouts.completions for c in group]
        if not parts or not flat:
            return plain
        _require_tokens(flat, list(self.spans.values()))
        values = torch.zeros(*rewards.total.shape, max(1, *(c.num_tokens for c in flat)))
        for p, group in enumerate(rollouts.completions):
            for g, completion in enumerate(group):
                if not plain.kept[p, g]:
                    continue
                values[p, g, : completion.num_tokens] = plain.values[p, g]
                for name, of_part in parts.items():
                    start, end = completion.tag_tokens.get(self.spans[name], (0, 0))
                    values[p, g, start:end] += of_part[p, g]
        return replace(plain, values=values)

    def _of_spans(self, rewards: Rewards) -> dict[str, torch.Tensor]:
        """Return the weighted advantages of each reward of a span, [P, G], 0 where it says nothing."""
        if not self.spans or not rewards.verdicts:
            return {}
        scores = scores_by_verifier(rewards)
        for name in self.spans:
            if name not in scores:
                raise UserError(
                    f"span_grpo: spans: expected names of rewards, got {name!r}{nearest(name, list(scores))}"
                )
        return {
            name: self.weights.get(name, 1.0) * self.estimate(scores[name]) for name in self.spans
        }


def _require_tokens(completions: list[Completion], tags: list[str]) -> None:
    """Refuse completions in which tags were found, but not their tokens."""
    for completion in completions:
        seen = not completion.segments and any(tag in completion.parsed.spans for tag in tags)
        if seen and not completion.tag_tokens:
            raise UserError(
                "span_grpo needs the tokens of the tags: expected `tag_tokens` among the config's strategies"
            )
