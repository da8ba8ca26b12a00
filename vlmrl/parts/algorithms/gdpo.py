"""GDPO: each verifier's scores are normalised in the group before they are added up.

Source: Liu et al. 2026, "Group reward-Decoupled Normalization Policy Optimization", arXiv 2601.05242,
eq. 4 to 6: the advantages of all verifiers, times their weights, are summed and whitened over the batch. So
(0, 1) of two verifiers is told from (0, 2), and equal sums of unlike scores teach. Deviations are
unbiased and 1e-4 is added, as in TRL. The total reward (`combine`, gates, `shape`) is not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from vlmrl.algorithms import advantages
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.schema import Rewards


@dataclass(frozen=True, slots=True)
class Gdpo(Grpo):
    """Normalise rewards one by one. Example: Gdpo(weights={"format": 0.5})."""

    baseline: Literal["mean"] = "mean"
    scale: Literal["std"] = "std"
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weight of a verifier's advantages by its name in the config, 1 where not named. The weights of
    `rewards` do not count; name a verifier that is there for its curve only with 0."""

    @property
    def only_uniform_is_silent(self) -> bool:
        """Return no: equal sums may be of unlike scores."""
        return False

    def estimate(self, rewards: Rewards) -> torch.Tensor:
        """Return the whitened sum of each verifier's advantages, [P, G]."""
        total = torch.zeros_like(rewards.total)
        for name, scores in scores_by_verifier(rewards).items():
            total = total + self.weights.get(name, 1.0) * Grpo.estimate(self, scores)
        everywhere = rewards.valid.view(1, -1)
        mean = advantages.from_batch(total, rewards.valid)
        whitened = mean / (advantages.deviation(total.view(1, -1), everywhere) + advantages.EPS)
        silent = (total == 0).all(-1, keepdim=True)
        return whitened.masked_fill(silent, 0.0)


def scores_by_verifier(rewards: Rewards) -> dict[str, Rewards]:
    """Return each verifier's scores as rewards, valid where it applies; without verdicts the total."""
    flat = [verdicts for group in rewards.verdicts for verdicts in group]
    names = sorted({name for verdicts in flat for name in verdicts})
    by_verifier = {}
    for name in names:
        scores = [v[name].score if name in v and v[name].applies else None for v in flat]
        values = torch.tensor([0.0 if s is None else s for s in scores])
        known = torch.tensor([s is not None for s in scores]).view_as(rewards.valid)
        by_verifier[name] = replace(
            rewards, total=values.view_as(rewards.total), valid=rewards.valid & known
        )
    return by_verifier or {"": rewards}
