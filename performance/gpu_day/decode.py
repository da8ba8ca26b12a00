"""Tokens a second that an engine generates, and vLLM in the trainer's process: its sleep, its shortcuts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from groups import image_prompt, micro_batch, update

from gpu_day.day import OFF, Day, gib
from gpu_day.device import DEVICE, ON_GPU, Measured, attempt, measure, release
from gpu_day.report import Row
from vlmrl.engines.base import RunningEngine, Sampling
from vlmrl.engines.hf import Hf
from vlmrl.forward.packing import pack
from vlmrl.policy.policy import Policy
from vlmrl.schema import Advantages, PromptBatch, Rollouts

GROUPS = (8, 64)
"""Completions of the one prompt."""


def decode(day: Day) -> Iterator[Row]:
    """Measure engine hf."""
    policy = day.policy()
    policy.stop_ids = ()  # every completion goes on to the limit
    engine = Hf().start(policy)
    yield from speeds(day, policy, engine)


def speeds(day: Day, policy: Policy, engine: RunningEngine) -> Iterator[Row]:
    """Measure the generation of one group, by its size."""
    for group in GROUPS[:1] if day.tiny else GROUPS:
        case = day.case(1024, 128, group)
        batch = PromptBatch((image_prompt(policy, case.prompt),))
        sampling = Sampling(n=case.group, max_tokens=case.completion, seed=1)
        work = partial(engine.generate, batch, sampling)
        found = attempt(partial(measure, work, min(day.repeats, 3)))
        label = f"{type(engine).__name__}, P {case.prompt}, C {case.completion}, G {case.group}"
        yield {"what": label, **speed(found, case.completion, case.group)}


def speed(found: Measured | None, steps: int, group: int) -> Row:
    if found is None:
        return {"tokens/s": "out of memory"}
    return {
        "tokens/s": f"{steps * group / found.seconds:.0f} ± {found.spread:.0%}",
        "ms a token of all": f"{1000 * found.seconds / steps:.3g}",
        "peak": gib(found.peak),
    }


def vllm(day: Day) -> Iterator[Row]:
    """Measure vLLM beside the trainer: speed, weights handed over, memory asleep, log-probs."""
    from vlmrl.engines.vllm import Vllm

    policy = day.policy(freeze=["vision", "projector"])
    policy.stop_ids = ()
    options: dict[str, Any] = {} if ON_GPU else {"max_model_len": 512, "block_size": 32}
    chosen = Vllm(max_images=1, max_num_seqs=64, enable_sleep_mode=ON_GPU, **options)
    begun = time.perf_counter()
    engine = chosen.start(policy)
    yield {"what": "start of vLLM", "s": f"{time.perf_counter() - begun:.1f}"}
    try:
        yield from speeds(day, policy, engine)
        yield {"what": "free memory while vLLM sleeps", "GiB": free()}
        micro = micro_batch(policy, day.case(1024, 64, 8), day.ids)
        fits = attempt(partial(measure, partial(update, policy, micro, OFF), 1))
        yield {
            "what": "an update while vLLM sleeps",
            "ms": f"{1000 * fits.seconds:.0f}" if fits else "out of memory",
        }
        release()
        yield {
            "what": "waking and taking the weights",
            "s": f"{seconds(lambda: engine.sync(policy)):.1f}",
        }
        yield {
            "what": "engine against trainer",
            "mean |Δ log-prob|": f"{gap(day, policy, engine):.2g}",
        }
    finally:
        engine.close()


def shortcuts(day: Day) -> Iterator[Row]:
    """Measure vLLM's speed and log-probs with each of its shortcuts; random weights are guessed badly."""
    from vlmrl.engines.vllm import Vllm

    policy = day.policy()
    policy.stop_ids = ()
    base: dict[str, Any] = {} if ON_GPU else {"max_model_len": 512, "block_size": 32}
    chosen: list[dict[str, Any]] = [{}, {"kv_cache_dtype": "fp8"}, {"speculative_tokens": 4}]
    chosen += [{"quantization": "fp8"}] if ON_GPU else []
    for options in chosen:
        release()
        engine = Vllm(max_images=1, max_num_seqs=64, **base, **options).start(policy)
        label = ", ".join(f"{key}: {value}" for key, value in options.items()) or "none"
        try:
            for row in speeds(day, policy, engine):
                yield {"shortcut": label, **row}
            engine.sync(policy)
            yield {"shortcut": label, "mean |Δ log-prob|": f"{gap(day, policy, engine):.2g}"}
        finally:
            engine.close()


def free() -> str:
    return f"{torch.cuda.mem_get_info()[0] / 2**30:.1f}" if ON_GPU else "no device"


def seconds(work: Any) -> float:
    start = time.perf_counter()
    work()
    if ON_GPU:
        torch.cuda.synchronize(DEVICE)
    return time.perf_counter() - start


def gap(day: Day, policy: Policy, engine: RunningEngine) -> float:
    """Return how far the engine's log-probs are from the trainer's on average."""
    case = day.case(1024, 64, 8)
    batch = PromptBatch((image_prompt(policy, case.prompt),))
    rollouts: Rollouts = engine.generate(batch, Sampling(n=case.group, max_tokens=case.completion))
    shape = rollouts.shape
    kept = torch.ones(shape, dtype=torch.bool)
    everything = Advantages(torch.ones(shape), kept, torch.ones(shape))
    (packed,) = pack(
        rollouts, everything, updates=1, micro_tokens=2**62, max_tokens=case.completion
    )
    (micro,) = packed.micro
    policy.sharing = OFF
    with torch.no_grad():
        own = policy.logprobs(micro)[0].cpu()
    return (own - micro.sampling_logprobs)[micro.mask].abs().mean().item()
