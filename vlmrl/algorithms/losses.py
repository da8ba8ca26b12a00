"""Per-token policy losses (to be minimised) from log-probs and advantages; no aggregation here.

B completions, T tokens. A ratio is per token [B, T] or per completion [B, 1]; advantages are [B, T]
or [B, 1] and broadcast. Old and sampling log-probs carry no gradient.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch

# --------------------------------------------------------------------------------------------------
# A weight of the divergence that is led to a target.
#
# Source: Ziegler et al. 2019, "Fine-Tuning Language Models from Human Preferences", arXiv 1909.08593,
# section 2.2, with the horizon of its code, as in TRL's PPO and verl: the weight is multiplied by 1 + e n /
# horizon for n completions, e = found / target - 1 cut at plus and minus 0.2.


LARGEST_ERROR = 0.2


def next_weight(kl: float, seen: float, target: float, horizon: int, completions: int) -> float:
    """Return the weight after a step whose divergence per token was `seen`, if that is a number."""
    if not math.isfinite(seen):
        return kl
    error = min(max(seen / target - 1, -LARGEST_ERROR), LARGEST_ERROR)
    return kl * (1 + error * completions / horizon)


# --------------------------------------------------------------------------------------------------
# A weight of the entropy that is led to keep a target.
#
# Source: He et al. 2025, "Skywork Open Reasoner 1", arXiv 2505.22312, section 4, as in TRL, whose bonus
# acts by the entropy of the step before.


def next_bonus(bonus: float, entropy: float, target: float, step: float) -> float:
    """Return the weight, in [0, 1], after a step whose entropy per token was this."""
    return min(bonus + step, 1.0) if entropy <= target else max(bonus - step, 0.0)


# --------------------------------------------------------------------------------------------------
# Per-token estimates of KL(policy || reference) on tokens that the policy sampled.
#
# Source: Schulman 2020, "Approximating KL divergence" (joschu.net/blog/kl-approx.html). To add one,
# write a function of d = log reference - log policy, [B, T], and name it in `Estimator`, the choices
# of the config, and in `ESTIMATORS`.


Estimator = Literal["k1", "k2", "k3"]


def k1(d: torch.Tensor) -> torch.Tensor:
    """Return -d: unbiased, either sign; as a loss its on-policy gradient is 0 on average."""
    return -d


def k2(d: torch.Tensor) -> torch.Tensor:
    """Return d^2 / 2: biased, but as a loss its on-policy gradient is the divergence's own."""
    return d.square() / 2


def k3(d: torch.Tensor) -> torch.Tensor:
    """Return exp(d) - d - 1: unbiased, never negative. Shao et al. 2024 (GRPO), arXiv 2402.03300, eq. 4.

    As a loss its on-policy gradient is that of the forward divergence, KL(reference || policy).
    """
    return d.exp() - d - 1


ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}


def kl(
    estimator: Estimator, new: torch.Tensor, ref: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Estimate the divergence per token, [B, T]; 0 outside the mask."""
    return ESTIMATORS[estimator](log_ratio(ref, new, mask))


# --------------------------------------------------------------------------------------------------
# From per-token losses to one micro-batch's share of the batch's loss.
#
# The denominators are global (over all micro-batches and ranks), so shares ADD UP: how a batch is cut
# never changes the update. To add one, write a function of `Sums` and name it in `Aggregation`, the
# choices of the config, and in `AGGREGATIONS`.


Aggregation = Literal["sequence", "token", "prompt", "sum", "constant"]


class Sums(NamedTuple):
    """What an aggregation divides: a micro-batch's losses and lengths, and the totals of the batch."""

    losses: torch.Tensor
    """[B], each completion's loss summed over its tokens, times its weight."""
    lengths: torch.Tensor
    """[B], loss tokens of each completion."""
    num_tokens: int
    num_rollouts: int
    max_tokens: int


def sequence(sums: Sums) -> torch.Tensor:
    """Mean over completions of the mean over their tokens. GRPO, arXiv 2402.03300, eq. 3."""
    return (sums.losses / sums.lengths.clamp(min=1)).sum() / max(sums.num_rollouts, 1)


def token(sums: Sums) -> torch.Tensor:
    """Mean over all loss tokens of the batch. DAPO, arXiv 2503.14476, eq. 12."""
    return sums.losses.sum() / max(sums.num_tokens, 1)


def summed(sums: Sums) -> torch.Tensor:
    """Mean over completions of the sum over their tokens. LUSPO, arXiv 2602.05261; REINFORCE."""
    return sums.losses.sum() / max(sums.num_rollouts, 1)


def constant(sums: Sums) -> torch.Tensor:
    """Sum over tokens / (completions * max_tokens). Dr. GRPO, arXiv 2503.20783, section 3.2."""
    return sums.losses.sum() / max(sums.num_rollouts * sums.max_tokens, 1)


AGGREGATIONS = {
    "sequence": sequence,
    "token": token,
    # The rows' weights, see `advantages.mean_over_prompts`, make it a mean over prompts.
    "prompt": token,
    "sum": summed,
    "constant": constant,
}


def aggregate(
    how: Aggregation,
    losses: torch.Tensor,
    mask: torch.Tensor,
    weights: torch.Tensor,
    num_tokens: int,
    num_rollouts: int,
    max_tokens: int,
    lengths: torch.Tensor | None = None,
) -> torch.Tensor:
    """Reduce to a scalar. `losses`, `mask` [B, T]; `weights` [B] multiply each completion's loss.

    `lengths` [B] are the loss tokens of whole completions, where a row is a part of one.
    """
    sums = weights * torch.where(mask, losses, 0.0).sum(-1)
    own = mask.sum(-1) if lengths is None else lengths
    return AGGREGATIONS[how](Sums(sums, own, num_tokens, num_rollouts, max_tokens))


# --------------------------------------------------------------------------------------------------
# Log ratios, of tokens and of whole completions.


LOG_BOUND = 20.0
"""|log ratio| is cut here: e^20 is far outside any clip range, and nothing, k3 too, can overflow to inf."""


def log_ratio(new: torch.Tensor, old: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Log of new / old probability per token, [B, T]; 0 outside the mask."""
    return torch.where(mask, new - old, 0.0).clamp(-LOG_BOUND, LOG_BOUND)


def sequence_log_ratio(new: torch.Tensor, old: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Log of the ratio of whole completions' probabilities, [B, 1]: the sum over their tokens."""
    total = torch.where(mask, new - old, 0.0).sum(-1, keepdim=True)
    return total.clamp(-LOG_BOUND, LOG_BOUND)


def mean_log_ratio(new: torch.Tensor, old: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean over the tokens of a completion of the log of new / old probability, [B, 1]."""
    total = torch.where(mask, new - old, 0.0).sum(-1, keepdim=True)
    return (total / mask.sum(-1, keepdim=True).clamp(min=1)).clamp(-LOG_BOUND, LOG_BOUND)


def clipped(
    ratio: torch.Tensor,
    advantages: torch.Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> torch.Tensor:
    """-min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A), broadcast shape of its inputs.

    `dual_clip` bounds the ratio from above where A < 0.
    Source: Schulman et al. 2017 (PPO), arXiv 1707.06347, eq. 7; two clip values: Yu et al. 2025
    (DAPO), arXiv 2503.14476, eq. 10; dual clip: Ye et al. 2020, arXiv 1912.09729.
    """
    within = ratio.clamp(1 - clip_low, 1 + clip_high)
    bounded = ratio if dual_clip is None else ratio.clamp(max=dual_clip)
    return -torch.minimum(bounded * advantages, within * advantages)


def soft_gated(
    ratio: torch.Tensor, advantages: torch.Tensor, steepness: torch.Tensor
) -> torch.Tensor:
    """-4 / steepness * sigmoid(steepness * (ratio - 1)) * A: its slope at ratio 1 is that of the ratio.

    Source: Gao et al. 2025 (SAPO), arXiv 2511.20347, eq. 5 and 6.
    """
    return -4 / steepness * torch.sigmoid(steepness * (ratio - 1)) * advantages


def reinforce(new: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
    """Compute -A * log-prob, [B, T]. Source: Chu et al. 2025 (GPG), arXiv 2504.02546."""
    return -advantages * new


def truncated_importance(log_weight: torch.Tensor, cap: float, floor: float = 0.0) -> torch.Tensor:
    """Compute the bounded weight min(max(exp(log_weight), floor), cap), without gradient.

    Corrects for an engine whose log-probs are not the trainer's: `log_weight` is the log of
    old / sampling probability, per token or per completion. Source: Yao et al. 2025, "Your
    efficient RL framework secretly brings you off-policy RL training".
    """
    return log_weight.detach().exp().clamp(min=floor, max=cap)


def filtered_importance(log_weight: torch.Tensor, cap: float, floor: float = 0.0) -> torch.Tensor:
    """Compute the weight exp(log_weight) where it is in [floor, cap], else 0; without gradient.

    The weight of the decoupled objective, `log_weight` as above with the trainer's policy at the
    start of the step as the old, "proximal" one: Fu et al. 2025 (AReaL), arXiv 2505.24298, section 5.
    The paper has no cap; its code leaves out what exceeds one.
    """
    weight = log_weight.detach().exp()
    return torch.where((weight >= floor) & (weight <= cap), weight, 0.0)


def off_policy(
    new: torch.Tensor,
    sampling: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    threshold: float,
) -> torch.Tensor:
    """Return which tokens are left out, bool [B, T] or [B, 1] as the advantages: worse than the baseline,
    in a completion whose mean of log sampling - log new exceeds the threshold.

    Source: DeepSeek-AI 2025, "DeepSeek-V3.2", arXiv 2512.02556, eq. 9.
    """
    gap = mean_log_ratio(sampling, new.detach(), mask)
    return (advantages < 0) & (gap > threshold)


def one_sided(
    logprobs: torch.Tensor, log_weight: torch.Tensor, advantages: torch.Tensor, cap: float
) -> torch.Tensor:
    """-min(exp(log_weight), cap) * A * log-prob, the weight without gradient, broadcast shape.

    `log_weight` is the log of new / sampling probability: bounded from above only, so every token
    keeps a gradient. Source: Wu et al. 2025 (LlamaRL: AIPO), arXiv 2505.24034; MiniMax 2025
    (MiniMax-M1: CISPO), arXiv 2506.13585, eq. 4 and 5, without its lower bound, as there.
    """
    return reinforce(logprobs, advantages) * truncated_importance(log_weight, cap)
