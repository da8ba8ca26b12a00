"""The forecast of a step's memory against the most that the allocator gave out in a real step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from groups import image_prompt

from gpu_day.day import Day, gib
from gpu_day.device import ON_GPU, allocated, attempt
from gpu_day.report import Row
from vlmrl.config import Config
from vlmrl.engines.base import RunningEngine, Sampling
from vlmrl.engines.hf import Hf
from vlmrl.errors import UserError
from vlmrl.forward.packing import pack
from vlmrl.monitoring.memory_forecast import forecast as foretell
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.policy.optimizers import adamw
from vlmrl.policy.policy import Policy
from vlmrl.schema import Advantages, PromptBatch, Rollouts, TrainBatch

FROZEN = {"freeze": ["vision", "projector"]}
LORA = {"lora": {"rank": 16}}
RUNS: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("LoRA, shared", LORA, {"shared_forward": "on"}),
    (
        "LoRA, plain, checkpointed",
        {**LORA, "gradient_checkpointing": True},
        {"shared_forward": "off"},
    ),
    ("frozen tower, low memory", FROZEN, {"shared_forward": "low_memory"}),
    ("frozen tower, shared", FROZEN, {"shared_forward": "on"}),
    (
        "frozen tower, plain, small micro-batches",
        FROZEN,
        {"shared_forward": "off", "micro_batch_tokens": 3000},
    ),
)
"""Settings of the model and the optimizer; the ones that need least memory first."""


def forecast(day: Day) -> Iterator[Row]:
    """Compare forecast and peak of a step with two groups, by settings."""
    for name, model, optimizer in RUNS[:1] + RUNS[-1:] if day.tiny else RUNS:
        yield from step(day, name, model, optimizer)


def step(day: Day, name: str, model: dict[str, Any], optimizer: dict[str, Any]) -> Iterator[Row]:
    case, prompts = day.case(1024, 256, 8), 2
    if day.tiny and "micro_batch_tokens" in optimizer:
        optimizer = {**optimizer, "micro_batch_tokens": 2 * (case.prompt + case.completion)}
    policy = day.policy(**model)
    policy.stop_ids = ()  # every completion goes on to the limit
    config = Config.model_validate(
        {
            "model": policy.config.model_dump(),
            "data": {"train": ["shapes"]},
            "rewards": ["box_iou"],
            "rollout": {
                "prompts": prompts,
                "group_size": case.group,
                "max_tokens": case.completion,
            },
            "optimizer": {"micro_batch_tokens": 8192, **optimizer},
        }
    )
    policy.use_optimizer(adamw(policy.trainable, 1e-6), config.optimizer)
    engine = Hf()
    batch = PromptBatch((image_prompt(policy, case.prompt),) * prompts)
    found = attempt(lambda: foretell(config, policy, engine, batch.prompts, kl=False))
    row = {"run": name, "forecast": "out of memory" if found is None else gib(found.peak)}
    try:
        peak = attempt(lambda: peak_of(config, policy, engine.start(policy), batch))
    except UserError as error:  # the policy halves its micro-batches before it gives up
        if not str(error).startswith("out of memory"):
            raise
        peak = None
    if peak is None:
        yield {**row, "peak": "out of memory"}
        return
    parts = (
        {}
        if found is None
        else {"ratio": f"{found.peak / peak:.2f}", "parts": written(found.parts)}
    )
    yield {**row, "peak": gib(peak), **parts}


def written(parts: dict[str, int]) -> str:
    return ", ".join(f"{name} {gib(size)}" for name, size in parts.items() if size)


def peak_of(config: Config, policy: Policy, engine: RunningEngine, batch: PromptBatch) -> int:
    """Return the bytes at the peak of a second step: the first one makes the optimizer's state."""
    rollout = config.rollout
    draw = Sampling(n=rollout.group_size, max_tokens=rollout.max_tokens, seed=1)

    def generate() -> Rollouts:
        return engine.generate(batch, draw)

    def update(batches: list[TrainBatch]) -> None:
        policy.update(batches, Grpo(), 1e-6, 0.0)

    rollouts = generate()
    batches = cut(config, rollouts)
    update(batches)
    if ON_GPU:
        torch.cuda.reset_peak_memory_stats()
        generate()
        update(batches)
        return torch.cuda.max_memory_allocated()
    state = [t for own in policy.optimizer.state.values() for t in own.values()]
    stays = sum(t.nbytes for t in [*policy.base.parameters(), *state])
    gradients = sum(p.grad.nbytes for p in policy.trainable if p.grad is not None)
    generating = allocated(generate)
    policy.optimizer.zero_grad()  # the profiler does not see that something older than itself is freed
    return stays + max(gradients + generating, allocated(lambda: update(batches)))


def cut(config: Config, rollouts: Rollouts) -> list[TrainBatch]:
    """Return the batches of an update with random advantages."""
    kept = torch.ones(rollouts.shape, dtype=torch.bool)
    generator = torch.Generator().manual_seed(0)
    advantages = Advantages(torch.randn(rollouts.shape, generator=generator), kept, kept.float())
    return pack(
        rollouts,
        advantages,
        updates=1,
        micro_tokens=config.optimizer.micro_batch_tokens,
        max_tokens=config.rollout.max_tokens,
    )
