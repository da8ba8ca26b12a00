"""The update by forward: seconds, peak memory and model-FLOPs utilisation.

MFU = 3 * (operations of the way's forward) / (seconds * the card's published dense bfloat16 rate), as
in PaLM (arXiv:2204.02311, appendix B): what checkpointing computes again does not count. The bound is
the ratio of operations to the plain forward's; with the head's logits, which every way computes twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from groups import Case, flops, low_memory_update, micro_batch, predicted, update, update_in_parts

from gpu_day.day import ON, Day, cells
from gpu_day.device import Measured, attempt, measure, peak_flops
from gpu_day.report import Row
from vlmrl.forward.logprobs import head_logprobs
from vlmrl.policy.policy import Policy
from vlmrl.schema import MicroBatch

CASES = ((1024, 256, 8), (256, 256, 8), (1024, 64, 8))
TRAINERS, PLAIN, SHARED = "prompt and tower once a completion", "plain", "shared"


def updates(day: Day) -> Iterator[Row]:
    """Measure the update of one group in all ways; what does not fit is tried in smaller parts."""
    policy = day.policy()
    for case in CASES[:1] if day.tiny else CASES:
        yield from ways(day, policy, day.case(*case))
    yield from heads(day, policy, day.case(*CASES[0]))


def ways(day: Day, policy: Policy, case: Case) -> Iterator[Row]:
    micro = micro_batch(policy, case, day.ids)
    apart = replace(micro, prompts=micro.prompts * case.group, group=torch.arange(case.group))
    whole: Callable[[], AbstractContextManager[None]] = nullcontext
    plain: Measured | None = None
    for way, batch, around in (
        (PLAIN, micro, whole),
        (SHARED, micro, whole),
        ("low memory", micro, whole),
        ("plain, checkpointed", micro, partial(checkpointing, policy)),
        ("shared, checkpointed", micro, partial(checkpointing, policy)),
        (TRAINERS, apart, whole),
    ):
        with around():
            found, rows = fitting(day, policy, way, batch)
        plain = found if way == PLAIN else plain
        yield {
            "P, C, G": f"{case.prompt}, {case.completion}, {case.group}",
            "update": way if rows == case.group else f"{way}, {rows} completions at a time",
            **cells(found),
            **compared(policy, case, way, found, plain),
        }


def fitting(day: Day, policy: Policy, way: str, micro: MicroBatch) -> tuple[Measured | None, int]:
    """Measure a way; the plain forward takes half as many completions at a time until they fit."""
    rows = len(micro.group)
    if way == "low memory":
        return attempt(
            lambda: measure(partial(low_memory_update, policy, micro), day.repeats)
        ), rows
    if way.startswith(SHARED):
        return attempt(lambda: measure(partial(update, policy, micro, ON), day.repeats)), rows
    while True:
        work = partial(update_in_parts, policy, micro, rows)
        found = attempt(partial(measure, work, day.repeats))
        if found or rows == 1:
            return found, rows
        rows //= 2


def compared(
    policy: Policy, case: Case, way: str, found: Measured | None, plain: Measured | None
) -> Row:
    """Return the utilisation, and the measured and the possible gain over the plain forward."""
    if found is None:
        return {}
    own, shared = flops(policy, case), way.startswith(SHARED) or way == "low memory"
    tower = own.tower * (case.group if way == TRAINERS else 1)
    needed = 3 * ((own.shared if shared else own.plain) + own.head + tower)
    rate = needed / found.seconds
    bound = predicted(policy, case, shared=True)
    key = "ours" if shared else "trainers" if way == TRAINERS else "plain"
    peak = peak_flops()
    return {
        "TFLOP/s": f"{rate / 1e12:.3g}",
        "MFU": f"{rate / peak:.1%}" if peak else "",
        "plain / this": f"{plain.seconds / found.seconds:.2f}x" if plain else "",
        "bound": f"{bound['plain'] / bound[key]:.2f}x",
    }


def heads(day: Day, policy: Policy, case: Case) -> Iterator[Row]:
    """Measure the head alone, as it is and with all of its products in bfloat16.

    The trainer's backward runs outside of autocast, so a float32 weight is multiplied in float32 there.
    """
    weight = policy.family.head(policy.base).weight.detach()
    size = case.group * case.completion
    hidden = torch.randn(size, weight.shape[1], device=weight.device, requires_grad=True)
    targets = torch.randint(weight.shape[0], (size,), device=weight.device)
    for name, own in (("head alone", weight), ("head alone, in bfloat16", weight.bfloat16())):
        head: Any = SimpleNamespace(weight=own.clone().requires_grad_())

        def work(head: Any = head) -> None:
            hidden.grad = head.weight.grad = None
            with torch.autocast(hidden.device.type, torch.bfloat16):
                logprobs, _ = head_logprobs(hidden, head, targets, 1.0)
            logprobs.sum().backward()

        label = f"{case.prompt}, {case.completion}, {case.group}"
        found = attempt(partial(measure, work, day.repeats))
        yield {"P, C, G": label, "update": name, **cells(found)}


@contextmanager
def checkpointing(policy: Policy) -> Iterator[None]:
    """Compute activations again in the backward, inside."""
    policy.checkpoint_layers()
    try:
        yield
    finally:
        policy.checkpoint_layers(False)
