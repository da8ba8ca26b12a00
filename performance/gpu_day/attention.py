"""Attention kernels: a flash kernel inside the shared forward, and torch's own under the plain one.

On a GPU `attention_parts` multiplies matrices, which hold all scores at a time. The flash kernel has
the same contract (it gives the log-sum-exp, and its backward takes a merged one) where there is no
mask, which is so for groups without padding; elsewhere the matrices stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from groups import Case, micro_batch, update
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpu_day.day import OFF, ON, Day, cells
from gpu_day.device import attempt, measure
from gpu_day.parity import logprobs
from gpu_day.report import Row
from vlmrl.forward import shared
from vlmrl.models import attention as attention_parts
from vlmrl.policy.policy import Policy

aten = torch.ops.aten
CASES = ((1024, 256, 8), (1024, 1024, 8))
KERNELS = ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH")
REFUSED = ("No available kernel", "No viable backend")


def attention(day: Day) -> Iterator[Row]:
    """Measure the shared and the plain update by attention kernel."""
    policy = day.policy()
    for case in CASES[:1] if day.tiny else CASES:
        yield from kernels(day, policy, day.case(*case))


def kernels(day: Day, policy: Policy, case: Case) -> Iterator[Row]:
    micro = micro_batch(policy, case, day.ids)
    label = {"P, C, G": f"{case.prompt}, {case.completion}, {case.group}"}
    with attending(partial(attention_parts.attend, fused=False), matrices_backward):
        exact = logprobs(policy, micro, "shared")
    parts = {"matrices": (partial(attention_parts.attend, fused=False), matrices_backward)}
    parts["flash"] = (flash, flash_backward)
    for name, (forward, backward) in parts.items():
        with attending(forward, backward):
            gap = (logprobs(policy, micro, "shared") - exact).abs().mean().item()
            found = attempt(partial(measure, partial(update, policy, micro, ON), day.repeats))
        yield {
            **label,
            "update": "shared",
            "kernel": name,
            **cells(found),
            "mean |Δ|": f"{gap:.2g}",
        }
    work = partial(update, policy, micro, OFF)
    yield {**label, "update": "plain", "kernel": "torch's choice", **measured(work, day.repeats)}
    for name in KERNELS:
        with sdpa_kernel(getattr(SDPBackend, name)):
            yield {**label, "update": "plain", "kernel": name, **measured(work, day.repeats)}


def measured(work: Callable[[], None], repeats: int) -> Row:
    """Return a measurement; a kernel that does not take these inputs says so by a RuntimeError."""
    try:
        return cells(attempt(partial(measure, work, repeats)))
    except RuntimeError as error:
        if not any(words in str(error) for words in REFUSED):
            raise
        return {"ms": "does not take this mask"}


# ----------------------------------------------------------------------------------- the flash kernel


def flash(q: Any, k: Any, v: Any, scale: float, causal: bool, mask: Any) -> tuple[Any, Any]:
    """Do as `attention_parts.attend` by the flash kernel of the device, where there is no mask."""
    if mask is not None or q.is_cpu:
        return attention_parts.attend(q, k, v, scale, causal, mask)
    out, lse, *_ = aten._scaled_dot_product_flash_attention(
        q, k, v, 0.0, causal, return_debug_mask=False, scale=scale
    )
    return out, lse


def flash_backward(
    grad: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, scale: float, causal: bool, mask: Any
) -> tuple[Any, ...]:
    """Do as `attention_parts.attend_backward` by the flash kernel of the device, where there is no mask."""
    if mask is not None or q.is_cpu:
        return attention_parts.attend_backward(grad, q, k, v, out, lse, scale, causal, mask)
    seed = torch.zeros(2, dtype=torch.uint64, device=q.device)  # of a dropout that there is not
    longest = q.shape[2], k.shape[2]
    return aten._scaled_dot_product_flash_attention_backward(
        *(grad, q, k, v, out, lse.contiguous(), None, None, *longest, 0.0, causal),
        *(seed, torch.zeros((), dtype=torch.uint64, device=q.device)),
        scale=scale,
    )


matrices_backward = partial(attention_parts.attend_backward, fused=False)


@contextmanager
def attending(forward: Callable[..., Any], backward: Callable[..., Any]) -> Iterator[None]:
    """Let the shared forward attend by these functions, inside."""
    before = shared.attend, shared.attend_backward
    shared.attend, shared.attend_backward = forward, backward  # type: ignore[assignment]
    try:
        yield
    finally:
        shared.attend, shared.attend_backward = before
