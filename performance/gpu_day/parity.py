"""Log-probs and gradients of bfloat16 against float32, by forward.

One policy with float32 weights computes in both types, so that all differences are rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from groups import low_memory_update, micro_batch, update

from gpu_day.day import OFF, ON, Day
from gpu_day.report import Row
from vlmrl.forward.logprobs import SMALL, TOLERANCE, disagreement
from vlmrl.policy.policy import Policy
from vlmrl.schema import MicroBatch

Found = tuple[torch.Tensor, torch.Tensor]
"""Log-probs [B * T], and the gradient of the smaller weights, flat."""


def parity(day: Day) -> Iterator[Row]:
    """Compare the forwards of a model of the day's shape."""
    policy = day.policy(dtype="float32")
    yield from compare(policy, micro_batch(policy, day.case(256, 64, 4), day.ids))


def compare(policy: Policy, micro: MicroBatch) -> Iterator[Row]:
    """Compare all forwards with the plain one in float32, and with the plain one of their own type."""
    exact: Found | None = None
    for dtype in ("float32", "bfloat16"):
        policy.config = policy.config.model_copy(update={"dtype": dtype})
        plain: Found | None = None
        for way, work in ways(policy, micro).items():
            own = logprobs(policy, micro, way), gradient(policy, work)
            exact, plain = exact or own, plain or own
            mean, largest, slope = distance(exact, own)
            yield {
                "computed in": dtype,
                "forward": way,
                "mean |Δ log-prob|": f"{mean:.2g}",
                "largest": f"{largest:.2g}",
                "Δ gradient": f"{slope:.2g}",
                "mean |Δ| to plain of its type": f"{distance(plain, own)[0]:.2g}",
            }
        if policy.family.shared:
            yield first_batch_check(policy, micro, dtype)


def ways(policy: Policy, micro: MicroBatch) -> dict[str, Callable[[], None]]:
    plain = {"plain": partial(update, policy, micro, OFF)}
    if not policy.family.shared:
        return plain
    return {
        **plain,
        "shared": partial(update, policy, micro, ON),
        "low memory": partial(low_memory_update, policy, micro),
    }


def logprobs(policy: Policy, micro: MicroBatch, way: str) -> torch.Tensor:
    """Return the log-probs of all tokens, on the CPU."""
    with torch.no_grad():
        if way == "low memory":
            rows = policy.one_by_one(policy.base, micro)
            return torch.cat([found[0] for _, _, found, _ in rows]).cpu()
        policy.sharing = ON if way == "shared" else OFF
        return policy.logprobs(micro)[0].flatten().cpu()


def gradient(policy: Policy, work: Callable[[], None]) -> torch.Tensor:
    """Return the gradient of the smaller weights after an update, on the CPU."""
    work()
    own = [p.grad for p in policy.trainable if p.grad is not None and p.numel() <= SMALL]
    return torch.cat([gradient.float().flatten().cpu() for gradient in own])


def distance(known: Found, own: Found) -> tuple[float, float, float]:
    """Return the mean and largest difference of log-probs, and of the gradients relative to their norm."""
    gap = (own[0] - known[0]).abs()
    slope = (own[1] - known[1]).norm() / known[1].norm()
    return gap.mean().item(), gap.max().item(), slope.item()


def first_batch_check(policy: Policy, micro: MicroBatch, dtype: str) -> Row:
    """Return what the trainer finds when it compares both forwards on its first batch."""
    policy.sharing = ON
    with policy.generating():  # for its precision: `disagreement` turns gradients on again
        found = disagreement(policy.base, policy.family, micro, policy.temperature, policy.pad_id)
    allowed = TOLERANCE[dtype]
    passes = all(gap <= limit for gap, limit in zip(found, allowed, strict=True))
    return {
        "computed in": dtype,
        "forward": f"the trainer's check of shared: {'passes' if passes else 'FAILS'}",
        "mean |Δ log-prob|": f"{found[0]:.2g} of {allowed[0]:g} allowed",
        "Δ gradient": f"{found[1]:.2g} of {allowed[1]:g} allowed",
    }
