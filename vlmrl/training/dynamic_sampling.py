"""Dynamic sampling (DAPO): select informative groups from several batches, within a bound."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean

import torch

from vlmrl.algorithms.base import Algorithm
from vlmrl.schema import PromptBatch, Rewards, Rollouts

Scored = tuple[Rollouts, Rewards]


class GroupSelection:
    """The groups that one step trains on: P informative ones, or a share of P, selected from several batches.

    At most `1 + algorithm.dynamic_sampling_batches` batches are drawn; when they run out, the step
    continues with fewer groups. With 0 the groups are those of the one batch, informative or not.

    Source: Yu et al. 2025 (DAPO), arXiv 2503.14476, eq. 11; the share: Chu et al. 2025 (GPG), arXiv
    2504.02546.
    """

    def __init__(self, algorithm: Algorithm, progress: float) -> None:
        self._algorithm, self._progress = algorithm, progress
        self._selected: list[Scored] = []
        self._curves: list[Mapping[str, float]] = []
        self._wanted = self._num_drawn = self._num_selected = self._num_informative = 0

    @property
    def num_batches(self) -> int:
        """Batches added so far."""
        return len(self._selected)

    @property
    def _num_missing(self) -> int:
        """Informative groups without which the step does not stop drawing."""
        needed = self._algorithm.dynamic_sampling_share * self._wanted - 1e-9  # 0.7 * 10 is above 7
        return max(0, math.ceil(needed) - self._num_selected)

    @property
    def is_short(self) -> bool:
        """True while groups are missing and another batch may be drawn."""
        if not self._selected:
            return True
        return (
            self._num_missing > 0 and self.num_batches <= self._algorithm.dynamic_sampling_batches
        )

    def add(
        self, rollouts: Rollouts, rewards: Rewards, curves: Mapping[str, float] | None = None
    ) -> None:
        """Select from a further batch of P groups; `curves` are what its sampler says of it."""
        self._curves.append(curves or {})
        self._wanted = rollouts.shape[0]
        self._num_drawn += rollouts.shape[0]
        if not self._algorithm.dynamic_sampling_batches:
            self._selected.append((rollouts, rewards))
            return
        # Groups with rehearsed completions teach whatever their rewards are.
        rehearsed = [any(c.origin == "rehearsal" for c in group) for group in rollouts.completions]
        kept = self._algorithm.keep(rewards, self._progress) | torch.tensor(rehearsed)
        informative = kept.nonzero()[:, 0].tolist()
        self._num_informative += len(informative)
        chosen = informative[: self._wanted - self._num_selected]
        self._num_selected += len(chosen)
        self._selected.append(_select(rollouts, rewards, chosen))

    def join(self) -> tuple[Rollouts, Rewards, dict[str, float]]:
        """Return the selected groups as one batch, and metrics; the cursor is the last batch's.

        `rollout/batches`: batches drawn; `rollout/groups_short`: groups missing;
        `rollout/refused_share`: share of all drawn groups that was uniform; the curves of the
        batches, averaged.
        """
        curves = {key: fmean(c[key] for c in self._curves) for key in self._curves[0]}
        if not self._algorithm.dynamic_sampling_batches:
            return *self._selected[0], curves
        metrics = {
            "rollout/batches": float(self.num_batches),
            "rollout/groups_short": float(self._num_missing),
            "rollout/refused_share": 1 - self._num_informative / self._num_drawn,
        }
        return *_join(self._selected), curves | metrics


def _select(rollouts: Rollouts, rewards: Rewards, which: list[int]) -> Scored:
    batch = PromptBatch(tuple(rollouts.batch.prompts[p] for p in which), rollouts.batch.cursor)
    return (
        replace(rollouts, batch=batch, completions=tuple(rollouts.completions[p] for p in which)),
        Rewards(
            rewards.total[which], rewards.valid[which], tuple(rewards.verdicts[p] for p in which)
        ),
    )


def _join(parts: list[Scored]) -> Scored:
    rollouts, rewards = zip(*parts, strict=True)
    prompts = tuple(p for r in rollouts for p in r.batch.prompts)
    return (
        replace(
            rollouts[-1],
            batch=PromptBatch(prompts, rollouts[-1].batch.cursor),
            completions=tuple(c for r in rollouts for c in r.completions),
            max_tokens=max(r.max_tokens for r in rollouts),
        ),
        Rewards(
            torch.cat([w.total for w in rewards]),
            torch.cat([w.valid for w in rewards]),
            tuple(v for w in rewards for v in w.verdicts),
        ),
    )
