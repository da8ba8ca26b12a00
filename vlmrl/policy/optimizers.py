"""The optimizer and its learning rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from vlmrl.config import OptimizerConfig
from vlmrl.policy import quantization

STATE_SIZE = {"adamw": 2.0, "adamw_8bit": 0.5, "paged_adamw": 2.0, "paged_adamw_8bit": 0.5}
"""Size of an optimizer's state relative to the float32 weights that it trains: two moments."""


def learning_rate(config: OptimizerConfig, step: int, total: int) -> float:
    """Return the lr of update `step` (from 0) of `total`: linear warm-up, then the schedule."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / (config.warmup_steps + 1)
    share = (step - config.warmup_steps) / max(1, total - config.warmup_steps)
    if config.lr_schedule == "linear":
        return config.lr * (1 - share)
    if config.lr_schedule == "cosine":
        return config.lr * 0.5 * (1 + math.cos(math.pi * share))
    return config.lr


def adamw(
    parameters: Sequence[torch.nn.Parameter],
    lr: float,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    name: str = "adamw",
    towers: Sequence[str] = (),
) -> torch.optim.Optimizer:
    """Build AdamW, or a variant of it in `quantization`; it decays matrices only, not norms or biases.

    With `towers`, one for each parameter ("" for those of no own learning rate), every tower has groups
    of its own, which say so under "tower"; `Policy.update` sets their learning rates.
    """
    of = towers or [""] * len(parameters)
    groups: list[dict[str, Any]] = []
    for tower in dict.fromkeys(sorted(of)):
        own = [p for p, its in zip(parameters, of, strict=True) if its == tower]
        label = {"tower": tower} if towers else {}
        groups += [
            {"params": [p for p in own if p.ndim > 1], "weight_decay": weight_decay, **label},
            {"params": [p for p in own if p.ndim <= 1], "weight_decay": 0.0, **label},
        ]
    if name in quantization.OPTIMIZERS:
        return quantization.optimizer(name)(groups, lr=lr, betas=betas, eps=eps)  # type: ignore[call-arg]
    return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=True)
