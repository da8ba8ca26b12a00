"""Advantages of whole completions relative to their group.

Rewards are [P, G] (P prompts, G completions), `valid` [P, G] bool. Rollouts that are not valid take
no part in any statistic and get 0, whatever their reward says. Results are float32, computed in
float64.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from vlmrl.algorithms.base import LossInputs
from vlmrl.algorithms.losses import LOG_BOUND, Aggregation
from vlmrl.schema import ORIGINS, Completion, MicroBatch, Rewards, Rollouts, TrainBatch
from vlmrl.system import distributed

# --------------------------------------------------------------------------------------------------
# What an algorithm's `prepare` needs of the whole batch: every rank calls these with its own rows.


def change(
    batches: Sequence[TrainBatch], make: Callable[[MicroBatch], MicroBatch]
) -> list[TrainBatch]:
    """Return the batches with each micro-batch replaced by what is made of it."""
    return [replace(batch, micro=tuple(map(make, batch.micro))) for batch in batches]


def gather(
    batches: Sequence[TrainBatch], read: Callable[[MicroBatch], torch.Tensor]
) -> torch.Tensor:
    """Return the numbers [B, T] read from all micro-batches of all ranks at their loss tokens, [N]."""
    counted = batches if distributed.speaks_for_sequence() else []
    own = [read(m).expand(m.mask.shape)[m.mask] for batch in counted for m in batch.micro]
    whole = torch.cat(own) if own else torch.zeros(0)
    return torch.cat(distributed.gather(whole))


def whiten(batches: Sequence[TrainBatch]) -> list[TrainBatch]:
    """Return the batches with advantages of mean 0 and variance 1 over all loss tokens of all ranks.

    The variance is unbiased and 1e-8 is added to it, as in verl.
    """
    values = gather(batches, lambda m: m.advantages).double()
    mean, count = values.mean(), max(len(values) - 1, 1)
    scale = ((values - mean).square().sum() / count + 1e-8).rsqrt()

    def make(micro: MicroBatch) -> MicroBatch:
        return replace(micro, advantages=((micro.advantages.double() - mean) * scale).float())

    return change(batches, make)


def own_denominators(
    batches: Sequence[TrainBatch],
    aggregation: Aggregation,
    part: Callable[[MicroBatch], torch.Tensor],
) -> list[TrainBatch]:
    """Return the batches with row weights that make two losses of one: each part has its own mean.

    `part` says which rows, bool [B], are the second part. The aggregation divides by the tokens
    or completions of the batch; the weights make that those of the row's own part.
    """
    weighted = []
    for batch in batches:
        sizes = torch.zeros(2, dtype=torch.float64)
        for micro in batch.micro:
            by_token = aggregation in ("token", "prompt")
            size = micro.mask.sum(-1) if by_token else torch.ones(len(micro.group))
            for which in (0, 1):
                sizes[which] += size[part(micro) == bool(which)].sum()
        sizes *= distributed.speaks_for_sequence()
        sizes = torch.stack(distributed.gather(sizes)).sum(0)
        factors = (sizes.sum() / sizes.clamp(min=1)).float()

        def make(micro: MicroBatch, factors: torch.Tensor = factors) -> MicroBatch:
            return replace(micro, weights=micro.weights * factors[part(micro).long()])

        weighted += change([batch], make)
    return weighted


def mean_over_prompts(batches: Sequence[TrainBatch]) -> list[TrainBatch]:
    """Return the batches with row weights that make a mean over tokens a mean over prompts of such means.

    A row's weight is multiplied by (tokens of the batch) / (prompts of the batch * tokens of its prompt),
    so that every prompt counts alike, however long its completions are.

    Source: Khatri et al. 2025 (ScaleRL), arXiv 2510.13786, section 4: the loss by prompt averages.
    """
    weighted = []
    for batch in batches:
        tokens: dict[int, int] = defaultdict(
            int
        )  # by prompt: a group may be in several micro-batches
        for micro in batch.micro:
            for which, size in zip(micro.group.tolist(), micro.mask.sum(-1).tolist(), strict=True):
                tokens[id(micro.prompts[which])] += size
        own = sum(size > 0 for size in tokens.values()) * distributed.speaks_for_sequence()
        mean = batch.num_tokens / max(sum(distributed.gather(own)), 1)

        def make(
            micro: MicroBatch, tokens: dict[int, int] = tokens, mean: float = mean
        ) -> MicroBatch:
            sizes = [tokens[id(prompt)] for prompt in micro.prompts]
            factors = torch.tensor([mean / max(size, 1) for size in sizes])
            return replace(micro, weights=micro.weights * factors[micro.group])

        weighted += change([batch], make)
    return weighted


# --------------------------------------------------------------------------------------------------
# A teacher beside the rewards: the divergence of the policy from it, token by token.
#
# Source: Agarwal et al. 2024 (GKD), arXiv 2306.13649, eq. 5: rewards and the divergence from a teacher on
# what the policy samples are one objective. On policy the two forms here have the same gradient, that of
# the reverse divergence KL(policy || teacher) at each token without what follows it. In the loss it is
# half the squared log ratio (k2): Xu et al. 2025 (KDRL), arXiv 2506.02208, who found it better than k3
# and than a part of the reward. In the advantage it is log teacher - log policy: Lu et al. 2025,
# "On-Policy Distillation" (thinkingmachines.ai), and Xiaomi 2026 (MiMo-V2-Flash), who add it to the
# advantage of the rewards; the recipe's ratio, clip and correction then hold it, too.


def gap(inputs: LossInputs) -> torch.Tensor:
    """Return log policy - log teacher per token, [B, T]; 0 outside the mask and where others wrote."""
    own = inputs.mask & inputs.of_origin("policy")
    return torch.where(own, inputs.new - inputs.extra["teacher"], 0.0)


def penalty(inputs: LossInputs) -> torch.Tensor:
    """Return half the squared log ratio of policy and teacher per token, [B, T], without its weight."""
    log_ratio = gap(inputs)
    bounded = log_ratio.clamp(-LOG_BOUND, LOG_BOUND)
    # Past the bound it is the tangent: its gradient is the bound, and not 0 as that of a clamp, so that
    # one token cannot make up a gradient.
    return bounded.square() / 2 + bounded.detach() * (log_ratio - bounded)


def reward(batches: Sequence[TrainBatch], weight: float) -> list[TrainBatch]:
    """Return the batches with `weight` times log teacher - log policy added to each advantage, [B, T].

    The old and the teacher's log-probs must be filled in.
    """

    def make(micro: MicroBatch) -> MicroBatch:
        assert micro.old_logprobs is not None
        own = micro.mask
        if "origin" in micro.extra:
            own = own & (micro.extra["origin"] == ORIGINS.index("policy"))
        gain = torch.where(own, micro.extra["teacher"] - micro.old_logprobs, 0.0)
        return replace(micro, advantages=micro.advantages + weight * gain)

    return change(batches, make)


# --------------------------------------------------------------------------------------------------
# A divergence that is a part of the reward, token by token, and not of the loss.
#
# Source: Ouyang et al. 2022 (InstructGPT), arXiv 2203.02155, eq. 2, as in OpenRLHF and verl: every
# token is rewarded -kl * (log policy - log reference), the estimator k1, and its advantage is the
# completion's less what the rest of the completion costs. As a loss k1 would have no gradient on average.


def charge(batches: Sequence[TrainBatch], kl: float) -> list[TrainBatch]:
    """Return the batches with `kl` times the divergence of the rest of the completion off each advantage.

    Old and reference log-probs must be filled in; advantages become [B, T].
    """

    def make(micro: MicroBatch) -> MicroBatch:
        assert micro.old_logprobs is not None and micro.ref_logprobs is not None
        gap = torch.where(micro.mask, micro.old_logprobs - micro.ref_logprobs, 0.0)
        rest = gap.flip(-1).cumsum(-1).flip(-1)
        return replace(micro, advantages=micro.advantages - kl * rest)

    return change(batches, make)


# --------------------------------------------------------------------------------------------------
# Which groups are worth training on, and what is right in them.


SPREAD = 1e-6
"""Rewards closer than this are equal: they differ by rounding only."""


def uniform(rewards: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Which groups have no gradient, bool [P]: equal valid rewards, or fewer than two valid ones.

    `rewards` [P, G], `valid` [P, G] bool.
    """
    highest = torch.where(valid, rewards, -torch.inf).amax(-1)
    lowest = torch.where(valid, rewards, torch.inf).amin(-1)
    return ~(highest - lowest > SPREAD)


def right(rewards: Rewards, above: float) -> torch.Tensor:
    """Which completions are right, bool [P, G]: those of a larger reward than `above`."""
    return (rewards.total > above) & rewards.valid


def pass_rate(right: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Compute the share of right completions among the valid ones of each group, [P, 1] in [0, 1]."""
    return (right & valid).sum(-1, keepdim=True) / valid.sum(-1, keepdim=True).clamp(min=1)


def lengths(rollouts: Rollouts, like: torch.Tensor) -> torch.Tensor:
    """Count the tokens of every completion, float [P, G], the shape of `like`."""
    counts = [[c.num_tokens for c in group] for group in rollouts.completions]
    return torch.tensor(counts, dtype=torch.float32).reshape(like.shape)


# --------------------------------------------------------------------------------------------------
# Credit by turn: what a rollout earned from each of its turns on, against others that came as far.


def returns_by_turn(
    rewards: Sequence[float], terminal: float, gamma: float, ends: Sequence[bool] = ()
) -> list[float]:
    """Return R_t = sum over k >= t of gamma^(k - t) r_k for every turn; `terminal` is paid on the last.

    A turn that `ends` names gets nothing of what comes after it, and gives nothing to those before it.
    """
    returns: list[float] = []
    later = terminal
    for reward, end in zip(
        reversed(rewards), reversed(ends or [False] * len(rewards)), strict=True
    ):
        ahead = later if not returns else 0.0 if end else gamma * later
        returns.append(reward + ahead)
        later = 0.0 if end else returns[-1]
    return returns[::-1]


def advantages_by_turn(
    returns: Sequence[Sequence[float]], valid: Sequence[bool], scaled: bool = False
) -> list[list[float]]:
    """Return for every turn of a group's rollouts its return less the baseline of that turn.

    The baseline of turn t is the mean over the valid rollouts that reach it; where fewer than two do,
    over all valid ones, of which those that ended before count with their last turn. Rollouts that are not
    valid, and turns at which all returns are equal, get 0. `scaled` divides by the standard deviation of
    what the mean is over.
    """
    values = [[0.0] * len(of_one) for of_one in returns]
    used = [g for g, known in enumerate(valid) if known]
    for turn in range(max((len(returns[g]) for g in used), default=0)):
        reached = [g for g in used if len(returns[g]) > turn]
        among = reached if len(reached) > 1 else used
        known = [returns[g][min(turn, len(returns[g]) - 1)] for g in among]
        if max(known) - min(known) <= SPREAD:
            continue
        mean = sum(known) / len(known)
        scale = statistics.stdev(known) + EPS if scaled else 1.0
        for g in reached:
            values[g][turn] = (returns[g][turn] - mean) / scale
    return values


def spread_over_tokens(completion: Completion, values: Sequence[float]) -> list[float]:
    """Return the value of its turn for each token that the policy wrote."""
    pairs = zip(completion.turns, values, strict=True)
    return [value for turn, value in pairs for _ in turn.token_ids]


# --------------------------------------------------------------------------------------------------
# Advantages of a group's completions from their rewards.


MOVING_DEVIATION = "moving_deviation"
"""Key of a sample's `meta` with the deviation of its task's rewards over the run; see `ema_grpo`."""
EPS = 1e-4
"""Added to the deviation, as in TRL and the R1-V family of trainers."""


def from_mean(rewards: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Reward minus the group's mean, [P, G].

    Source: Liu et al. 2025 (Dr. GRPO), arXiv 2503.20783, section 3.2.
    """
    return torch.where(valid, _deviations(rewards, valid), 0.0).float()


def from_others(rewards: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Reward minus the mean of the OTHER rollouts of its group, [P, G]; 0 where there is no other.

    Equal to n / (n - 1) * (reward - mean). Source: Ahmadian et al. 2024 (RLOO), arXiv 2402.14740,
    section 2.2.
    """
    n = valid.sum(-1, keepdim=True)
    scale = n / (n - 1).clamp(min=1)
    return torch.where(valid, scale * _deviations(rewards, valid), 0.0).float()


def from_batch(rewards: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Reward minus the mean of all rewards of the batch, [P, G]; exactly 0 where all are equal."""
    if not rewards.numel():  # dynamic sampling may leave no group
        return torch.zeros_like(rewards)
    flat = from_mean(rewards.view(1, -1), valid.view(1, -1)).view_as(rewards)
    return flat.masked_fill(uniform(rewards.view(1, -1), valid.view(1, -1)), 0.0)


def from_zero(rewards: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Return the reward itself, [P, G]."""
    return torch.where(valid, rewards, 0.0).float()


def deviation(rewards: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Compute the unbiased (n - 1) standard deviation of each group, [P, 1]; 0 below two rollouts.

    Source: Shao et al. 2024 (GRPO), arXiv 2402.03300, section 4.1.2; unbiased as TRL has it.
    """
    n = valid.sum(-1, keepdim=True)
    squares = torch.where(valid, _deviations(rewards, valid), 0.0).square().sum(-1, keepdim=True)
    return (squares / (n - 1).clamp(min=1)).sqrt().float()


def _deviations(rewards: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    known = torch.where(valid, rewards.double(), 0.0)
    mean = known.sum(-1, keepdim=True) / valid.sum(-1, keepdim=True).clamp(min=1)
    return known - mean
