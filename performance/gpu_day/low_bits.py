"""What bitsandbytes saves: 4-bit weights under LoRA, and optimizers with less state on the device."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from groups import micro_batch, update

from gpu_day.day import ON, Day, cells, gib
from gpu_day.device import ON_GPU, Measured, attempt, measure
from gpu_day.parity import logprobs
from gpu_day.report import Row
from vlmrl.policy.optimizers import STATE_SIZE, adamw
from vlmrl.policy.policy import Policy

LORA = {"rank": 16}


def low_bits(day: Day) -> Iterator[Row]:
    """Compare 4-bit weights with bfloat16 ones, and all optimizers with each other."""
    exact: list[torch.Tensor] = []
    for name, model in (("bfloat16", {}), ("nf4", {"quantization": "nf4"})):
        yield from weights(day, name, day.policy(lora=LORA, **model), exact)
    for name in ("adamw_8bit",) if day.tiny else STATE_SIZE:
        yield from optimizer(day, name, day.policy(freeze=["vision", "projector"]))


def weights(day: Day, name: str, policy: Policy, exact: list[torch.Tensor]) -> Iterator[Row]:
    """Measure an update with LoRA; `exact` are the log-probs of the first policy."""
    micro = micro_batch(policy, day.case(1024, 64, 8), day.ids)
    own = logprobs(policy, micro, "shared")
    exact.append(own)
    found = attempt(partial(measure, partial(update, policy, micro, ON), day.repeats))
    size = sum(p.nbytes for p in policy.base.parameters())
    yield {
        "what": f"update with LoRA, weights in {name}",
        **cells(found),
        "bytes that stay": gib(size),
        "mean |Δ log-prob|": f"{(own - exact[0]).abs().mean().item():.2g}",
    }


def optimizer(day: Day, name: str, policy: Policy) -> Iterator[Row]:
    """Measure an optimizer's step; paged state is not the allocator's, so it is not in the peak."""
    needed = (1 + STATE_SIZE[name]) * sum(p.nbytes for p in policy.trainable)
    if ON_GPU and name.startswith("paged") and needed > torch.cuda.mem_get_info()[0]:
        yield {
            "what": f"step of {name}",
            "ms": "not tried: managed memory beyond what is free can hang",
        }
        return
    chosen = adamw(policy.trainable, 1e-6, name=name)

    def steps() -> Measured:
        for parameter in policy.trainable:
            parameter.grad = torch.full_like(parameter, 1e-3)
        return measure(chosen.step, day.repeats)

    found = attempt(steps)
    own = [t for state in chosen.state.values() for t in state.values() if torch.is_tensor(t)]
    state = sum(t.nbytes for t in own)
    yield {"what": f"step of {name}", **cells(found), "bytes that stay": gib(state)}
