"""The base of the named recipes: every choice is a field, so a config can override it.

A recipe subclasses `Recipe`, sets the published defaults and defines its surrogate; here alone the loss
is corrected for other samplers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from vlmrl.algorithms import advantages, losses
from vlmrl.algorithms.base import LossInputs, LossOutput, Pass
from vlmrl.algorithms.losses import Aggregation
from vlmrl.schema import Advantages, Rewards, Rollouts, TrainBatch

BASELINES = {
    "mean": advantages.from_mean,
    "leave_one_out": advantages.from_others,
    "batch": advantages.from_batch,
    "none": advantages.from_zero,
}
OF_GROUPS = ("mean", "leave_one_out")
"""Baselines with which a uniform group has no gradient."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Group-relative policy gradient without a policy loss: subclasses define `surrogate`, and `log_ratio` if
    their ratio is not per token.

    Class variables: `metrics`, a line on each metric that only this recipe has, by its name;
    `own_passes`, the forwards before the update that it needs whatever its options are;
    `reads_completions` as in `Algorithm`; `of_wholes`, whether its loss takes a row for a whole completion.
    """

    metrics: ClassVar[Mapping[str, str]] = {}
    own_passes: ClassVar[tuple[Pass, ...]] = ()
    reads_completions: ClassVar[bool] = False
    of_wholes: ClassVar[bool] = False

    baseline: Literal["mean", "leave_one_out", "batch", "none"] = "mean"
    """Subtract from a reward the mean of its whole group, of the other completions of the group, of
    the batch, or nothing. With the last two a uniform group has a gradient."""
    scale: Literal["std", "batch", "none"] = "std"
    """Divide advantages by the standard deviation of the group, of the batch, or not."""
    aggregation: Aggregation = "sequence"
    """Loss over tokens. sequence: mean per completion, then over completions; token: mean over all
    tokens; prompt: mean over all tokens of a prompt's completions, then over prompts; sum: sum per
    completion, then mean over completions; constant: as sum, over `rollout.max_tokens`."""
    kl: float = 0.0
    """Weight of the divergence from the reference; 0: no reference is made."""
    kl_estimator: losses.Estimator = "k3"
    """Estimator of the divergence per token, as Schulman's note names them (k1, k2, k3)."""
    kl_unbiased: bool = False
    """Multiply the divergence by the ratio (DeepSeek-V3.2, arXiv 2512.02556), as TRL does."""
    kl_in_reward: bool = False
    """Take the divergence, estimated by k1, from the reward of each token and not from the loss."""
    kl_target: float | None = None
    """Divergence per token (`loss/kl`) at which an adaptive `kl` is to settle. None: `kl` is as it is
    written."""
    kl_horizon: int = 10000
    """Completions in which an adaptive `kl` grows or shrinks by at most about a fifth."""
    teacher_kl: float = 0.0
    """Weight of the divergence from the config's `teacher`, KL(policy || teacher) at each token, beside the
    rewards. 0: the teacher is not asked."""
    teacher_kl_in_advantage: bool = False
    """Add log teacher - log policy to the advantage of each token, where the recipe's ratio and clip hold
    it; else half its square is a part of the loss, whatever the recipe."""
    entropy_bonus: float = 0.0
    """Weight of the entropy of the policy at each loss token, which is taken off the loss; below 0 the loss
    lowers the entropy. The gradient is that of the whole distribution."""
    entropy_target: float | None = None
    """Entropy per token (`rollout/entropy`) that an adaptive `entropy_bonus` is to keep: it grows after a
    step at or below it and shrinks after others, in [0, 1], and acts where the step before was at or below
    it (Skywork-OR1, arXiv 2505.22312, as in TRL). None: `entropy_bonus` is as it is written."""
    entropy_step: float = 0.005
    """What an adaptive `entropy_bonus` grows or shrinks by after a step."""
    correction: Literal["truncated", "decoupled", "one_sided"] = "truncated"
    """For tokens that other weights, or another engine, sampled. Old is the trainer's policy at the
    start of the step. truncated: the loss times min(old / sampling probability, importance_cap).
    decoupled (AReaL): times old / sampling, 0 where that exceeds importance_cap. one_sided (AIPO,
    CISPO): in place of the recipe's ratio and clip, min(new / sampling, importance_cap) without
    gradient times A log-prob."""
    correction_level: Literal["recipe", "token", "sequence"] = "recipe"
    """What old / sampling is of. recipe: what the recipe's own ratio is of; token: each token; sequence:
    the whole completion, the product over its tokens, for each of them."""
    importance_cap: float = 2.0
    """Bound of that weight, which is 1 when the engine is exact and its weights are the trainer's."""
    importance_floor: float = 0.0
    """Least old / sampling: below it the weight of truncated is this, that of decoupled 0."""
    off_policy_threshold: float | None = None
    """Completions with a negative advantage have no policy loss if the mean over their tokens of
    log sampling - log policy exceeds this (DeepSeek-V3.2, arXiv 2512.02556, eq. 9). None: all have."""
    dynamic_sampling_batches: int = 0
    """Dynamic sampling: at most this many extra batches are drawn to replace uniform groups."""
    dynamic_sampling_share: float = 1.0
    """It stops once this share of a batch's groups is informative; the step trains on those alone."""

    def __post_init__(self) -> None:
        for name in ("kl", "teacher_kl", "dynamic_sampling_batches"):
            if getattr(self, name) < 0:
                raise ValueError(f"expected {name} of at least 0, got {getattr(self, name)}")
        check_positive(self, "importance_cap", "kl_horizon", "entropy_step")
        if not 0 < self.dynamic_sampling_share <= 1:
            raise ValueError(
                f"expected dynamic_sampling_share in (0, 1], got {self.dynamic_sampling_share}"
            )
        check_correction(self)
        if self.kl_target is not None and (self.kl_target <= 0 or self.kl == 0):
            raise ValueError(
                f"expected a positive kl_target and a positive kl to begin with, got {self.kl_target} "
                f"and {self.kl}"
            )
        if self.entropy_target is not None and not (
            self.entropy_target > 0 and 0 <= self.entropy_bonus <= 1
        ):
            raise ValueError(
                "expected a positive entropy_target and an entropy_bonus in [0, 1] to begin with, got "
                f"{self.entropy_target} and {self.entropy_bonus}"
            )
        if self.baseline not in OF_GROUPS and self.scale == "std":
            raise ValueError(
                f"expected scale batch or none with baseline {self.baseline}, got std: a uniform "
                "group has no deviation to divide by"
            )

    @property
    def only_uniform_is_silent(self) -> bool:
        """Whether groups lack a gradient just where rewards are equal; else `silent_share` is logged."""
        return self.baseline in OF_GROUPS

    @property
    def takes_parts(self) -> bool:
        """Whether rows may be parts of completions: nothing in the loss is of all tokens of a row."""
        apart = not (self.of_wholes or self.kl_in_reward or self.correction_level == "sequence")
        return apart and self.off_policy_threshold is None

    @property
    def targets(self) -> Mapping[str, float]:
        """Return what `kl` and `entropy_bonus` are led to, of those that adapt."""
        targets = {"kl": self.kl_target, "entropy_bonus": self.entropy_target}
        return {option: target for option, target in targets.items() if target is not None}

    @property
    def smallest_group(self) -> int:
        """Fewest completions of a group that can have a gradient."""
        return 2 if self.only_uniform_is_silent or self.baseline in OF_GROUPS else 1

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Return `own_passes`, and what divergences in the reward, or from a teacher, are made of."""
        passes = [*self.own_passes]
        if self.kl and self.kl_in_reward:
            passes += ["old", "reference"]
        if self.teacher_kl:
            passes += ["old", "teacher"] if self.teacher_kl_in_advantage else ["teacher"]
        return tuple(passes)

    @property
    def entropy_gradient(self) -> bool:
        """Whether the loss reads entropies."""
        return self.entropy_bonus != 0

    def shape(
        self, rewards: Rewards, rollouts: Rollouts, max_tokens: int, progress: float = 0.0
    ) -> Rewards:
        """Return the rewards unchanged, [P, G]."""
        return rewards

    def keep(self, rewards: Rewards, progress: float = 0.0) -> torch.Tensor:
        """Return which groups have a gradient, bool [P]."""
        if not self.only_uniform_is_silent:
            return (self.estimate(rewards) != 0).any(-1)
        return ~advantages.uniform(rewards.total, rewards.valid)

    def estimate(self, rewards: Rewards) -> torch.Tensor:
        """Return each reward against the baseline, over the scale, [P, G]; 0 where not valid."""
        total, valid = rewards.total, rewards.valid
        values = BASELINES[self.baseline](total, valid)
        if self.scale == "std":
            values = values / (advantages.deviation(total, valid) + advantages.EPS)
        if self.scale == "batch":
            batch = advantages.deviation(total.view(1, -1), valid.view(1, -1))
            values = values / (batch + advantages.EPS)
        return values

    def advantages(self, rewards: Rewards, rollouts: Rollouts, progress: float = 0.0) -> Advantages:
        """Return advantages [P, G]; invalid rollouts, and groups without a gradient, get 0.

        Such a group stays in the denominators, except under dynamic sampling
        (`dynamic_sampling_batches` > 0), where the batch consists of informative groups only.
        """
        total, valid = rewards.total, rewards.valid
        if not torch.isfinite(total[valid]).all():
            raise ValueError("a reward is NaN or infinite: the scorer must mask it or fail")
        values, kept = self.estimate(rewards), self.keep(rewards, progress)
        samples = [prompt.sample for prompt in rollouts.batch.prompts]
        weights = torch.tensor([s.weight for s in samples], dtype=torch.float32)
        sources = [s.source for s in samples]
        metrics = _shares("uniform_share", advantages.uniform(total, valid), sources)
        if not self.only_uniform_is_silent:
            metrics |= _shares("silent_share", ~kept, sources)
        return Advantages(
            values=values.masked_fill(~kept[:, None], 0.0),
            kept=valid & kept[:, None] if self.dynamic_sampling_batches else valid,
            weights=weights[:, None].repeat(1, total.shape[1]),
            metrics=metrics,
        )

    def prepare(self, batches: Sequence[TrainBatch], progress: float = 0.0) -> Sequence[TrainBatch]:
        """Return the batches with the divergences that are a part of the reward in the advantages, [B, T].

        With `aggregation: prompt` their rows get the weights that make a mean over tokens one over prompts.
        """
        if self.aggregation == "prompt":
            batches = advantages.mean_over_prompts(batches)
        if self.kl and self.kl_in_reward:
            batches = advantages.charge(batches, self.kl)
        if self.teacher_kl and self.teacher_kl_in_advantage:
            batches = advantages.reward(batches, self.teacher_kl)
        return batches

    def policy_loss(self, inputs: LossInputs) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return the policy's loss per token [B, T], corrected, and metrics per token [B, T] by name."""
        if self.correction == "one_sided":
            per_token, metrics = self.one_sided(inputs)
        else:
            per_token, metrics = self.corrected(inputs)
        per_token = per_token.expand_as(inputs.new)
        if self.off_policy_threshold is None:
            return per_token, metrics
        far = losses.off_policy(
            inputs.new, inputs.sampling, inputs.advantages, inputs.mask, self.off_policy_threshold
        )
        share = far.float().expand_as(inputs.new)
        return per_token.masked_fill(far, 0.0), {**metrics, "loss/off_policy": share}

    def corrected(self, inputs: LossInputs) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return `surrogate` with its loss, [B, T] or [B, 1], times the weight of `correction`."""
        per_token, metrics = self.surrogate(inputs)
        return per_token * self.importance(self.mismatch(inputs)), metrics

    def surrogate(self, inputs: LossInputs) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return the loss [B, T] or [B, 1] before `correction`, and metrics per token [B, T] by name."""
        raise TypeError(f"{type(self).__name__} must define surrogate")

    def one_sided(self, inputs: LossInputs) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return the loss per token [B, T] of `correction: one_sided`, and its metrics per token."""
        cap = self.importance_cap
        log_weight = self.log_ratio(inputs.new, inputs.sampling, inputs.mask)
        per_token = losses.one_sided(self.logprobs(inputs), log_weight, inputs.advantages, cap)
        return per_token.expand_as(inputs.new), weight_metrics(log_weight, inputs, cap)

    def log_ratio(self, new: torch.Tensor, old: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the log of new / old probability that the recipe weighs by, [B, T] or [B, 1]."""
        return losses.log_ratio(new, old, mask)

    def log_mismatch(self, inputs: LossInputs) -> torch.Tensor:
        """Return the log of old / sampling probability of what the recipe's ratio is of, [B, T] or [B, 1]."""
        return self.log_ratio(inputs.old, inputs.sampling, inputs.mask)

    def mismatch(self, inputs: LossInputs) -> torch.Tensor:
        """Return the log of old / sampling probability that `correction` weighs by, [B, T] or [B, 1]."""
        if self.correction_level == "recipe":
            return self.log_mismatch(inputs)
        whole = self.correction_level == "sequence"
        log_ratio = losses.sequence_log_ratio if whole else losses.log_ratio
        return log_ratio(inputs.old, inputs.sampling, inputs.mask)

    def logprobs(self, inputs: LossInputs) -> torch.Tensor:
        """Return the log-probs that the advantage multiplies: of tokens [B, T], or of completions [B, 1]."""
        return inputs.new

    def importance(self, log_weight: torch.Tensor) -> torch.Tensor:
        """Return the weight of the loss for log(old / sampling probability), without gradient."""
        bounds = self.importance_cap, self.importance_floor
        if self.correction == "decoupled":
            return losses.filtered_importance(log_weight, *bounds)
        return losses.truncated_importance(log_weight, *bounds)

    def divergence(self, inputs: LossInputs) -> torch.Tensor:
        """Return the divergence from the reference per token, [B, T], without its weight.

        Raises:
            ValueError: the inputs have no reference log-probs.
        """
        if inputs.ref is None:
            raise ValueError(f"kl is {self.kl}, but there are no reference log-probs")
        return losses.kl(self.kl_estimator, inputs.new, inputs.ref, inputs.mask)

    def loss(self, inputs: LossInputs) -> LossOutput:
        """Return the micro-batch's share of the loss: policy loss plus weighted divergences, aggregated.

        `inputs.extra["token_weight"]`, if there, multiplies the policy loss; denominators count all tokens.
        `inputs.extra["imitate"]`, if there, is the weight with which -log p of a token is added.
        """
        per_token, metrics = self.policy_loss(inputs)
        if "token_weight" in inputs.extra:
            per_token = per_token * inputs.extra["token_weight"]
        if self.kl_in_reward:
            if inputs.ref is not None:
                metrics = {**metrics, "loss/kl": inputs.new.detach() - inputs.ref}
        elif self.kl > 0:
            penalty = self.divergence(inputs)
            metrics = {**metrics, "loss/kl": penalty}
            if self.kl_unbiased:
                penalty = penalty * losses.log_ratio(inputs.new, inputs.old, inputs.mask).exp()
            per_token = per_token + self.kl * penalty
        if self.teacher_kl:
            metrics = {**metrics, "loss/teacher_kl": advantages.gap(inputs)}
            if not self.teacher_kl_in_advantage:
                per_token = per_token + self.teacher_kl * advantages.penalty(inputs)
        if self.entropy_bonus:
            assert inputs.entropy is not None
            per_token = per_token - self.entropy_bonus * inputs.entropy
        if "imitate" in inputs.extra:
            copied = -inputs.extra["imitate"] * torch.where(inputs.mask, inputs.new, 0.0)
            per_token, metrics = per_token + copied, {**metrics, "loss/imitation": copied}
        loss = losses.aggregate(
            self.aggregation,
            per_token,
            inputs.mask,
            inputs.weights,
            inputs.num_tokens,
            inputs.num_rollouts,
            inputs.max_tokens,
            inputs.extra["completion_tokens"][:, 0]
            if "completion_tokens" in inputs.extra
            else None,
        )
        sums = {k: torch.where(inputs.mask, v.detach(), 0.0).sum() for k, v in metrics.items()}
        return LossOutput(loss, sums)


def check_positive(recipe: Recipe, *names: str) -> None:
    """Refuse fields that are not positive.

    Raises:
        ValueError: names the field and what was found.
    """
    for name in names:
        if getattr(recipe, name) <= 0:
            raise ValueError(f"expected a positive {name}, got {getattr(recipe, name)}")


def check_correction(recipe: Recipe) -> None:
    """Refuse bounds of the correction that make no sense, and options that `one_sided` does not read.

    Raises:
        ValueError: names the field and what was found.
    """
    floor, cap = recipe.importance_floor, recipe.importance_cap
    if not 0 <= floor <= cap:
        raise ValueError(f"expected importance_floor in [0, importance_cap {cap}], got {floor}")
    if recipe.correction == "one_sided" and (floor or recipe.correction_level != "recipe"):
        raise ValueError(
            "expected importance_floor 0 and correction_level recipe with correction one_sided, got "
            f"{floor} and {recipe.correction_level}"
        )
    far = recipe.off_policy_threshold
    if far is not None and far < 0:
        raise ValueError(f"expected off_policy_threshold of at least 0, got {far}")


def check_clip_range(clip_low: float, clip_high: float) -> None:
    """Refuse clip bounds that leave no room or make no sense.

    Raises:
        ValueError: names the bound, what was found and what is allowed.
    """
    if not 0 < clip_low <= 1:
        raise ValueError(f"expected clip_low in (0, 1], got {clip_low}")
    if clip_high <= 0:
        raise ValueError(f"expected a positive clip_high, got {clip_high}")


def clip_metrics(
    ratio: torch.Tensor, inputs: LossInputs, clip_low: float, clip_high: float
) -> dict[str, torch.Tensor]:
    """Return per token [B, T] the ratio, and whether the loss is clipped below or above."""
    below = (ratio < 1 - clip_low) & (inputs.advantages < 0)
    above = (ratio > 1 + clip_high) & (inputs.advantages > 0)
    return {
        "loss/ratio": ratio.expand_as(inputs.new),
        "loss/clip_low": below.float().expand_as(inputs.new),
        "loss/clip_high": above.float().expand_as(inputs.new),
    }


def weight_metrics(
    log_weight: torch.Tensor, inputs: LossInputs, cap: float
) -> dict[str, torch.Tensor]:
    """Return per token [B, T] new / sampling probability, and whether it exceeds the cap."""
    ratio = log_weight.detach().exp().expand_as(inputs.new)
    return {"loss/ratio": ratio, "loss/clip_high": (ratio > cap).float()}


def _shares(name: str, flags: torch.Tensor, sources: list[str]) -> dict[str, float]:
    by_source = defaultdict(list)
    for source, flag in zip(sources, flags.tolist(), strict=True):
        by_source[source].append(flag)
    shares = {f"source/{s}/{name}": sum(f) / len(f) for s, f in by_source.items()}
    total = sum(flags.tolist()) / max(len(sources), 1)
    return {f"rollout/{name}": total, **shares}
