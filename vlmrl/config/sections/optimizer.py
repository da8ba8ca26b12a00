"""The section `optimizer` of a config."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from vlmrl.config.section import Scheduled, Section
from vlmrl.config.sections.model import Tower


class OptimizerConfig(Section):
    """AdamW, and how a batch of rollouts is divided into updates."""

    name: Literal["adamw", "adamw_8bit", "paged_adamw", "paged_adamw_8bit"] = "adamw"
    """8bit: the optimizer's state takes a quarter of the memory. paged: its state may leave a full
    GPU. Both through bitsandbytes."""
    lr: Scheduled[float] = Field(1e-6, gt=0)
    """Learning rate after the warm-up."""
    lr_factors: dict[Tower, Annotated[float, Field(gt=0)]] = {}
    """Multiples of `lr` for single towers, e.g. {vision: 0.1, projector: 2}, at every step of RL."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay rates of AdamW's averages of the gradient and its square."""
    eps: float = Field(1e-8, gt=0)
    """Term that AdamW adds to its denominator."""
    weight_decay: float = Field(0.0, ge=0)
    """Weight decay of AdamW."""
    max_grad_norm: Scheduled[float] = Field(1.0, gt=0)
    """Gradients of a larger norm are scaled down to this norm."""
    warmup_steps: int = Field(0, ge=0)
    """Steps of linear warm-up from 0 to `lr`."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after the warm-up: constant, or falling to 0 at the last step."""
    minibatches: Scheduled[int] = Field(1, ge=1)
    """Minibatches, and so optimizer updates, per batch of rollouts. Groups stay whole. 1: on-policy."""
    epochs: Scheduled[int] = Field(1, ge=1)
    """Passes over each batch of rollouts."""
    micro_batch_tokens: Scheduled[int] = Field(16384, ge=1)
    """Tokens per forward, prompt copies and padding included. Groups stay whole."""
    shared_forward: Literal["auto", "on", "low_memory", "off"] = "auto"
    """Compute the prompt of a group once. auto: where it pays and the model family supports it.
    low_memory: also update on one completion at a time."""
    shared_threshold: float = Field(1.3, ge=1)
    """Ratio G(P + C) / (P + GC) of tokens from which `shared_forward: auto` shares."""
