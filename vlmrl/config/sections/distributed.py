"""The section `distributed` of a config."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from vlmrl.config.section import Section


class DistributedConfig(Section):
    """How several processes (`torchrun`) train one model. A single process ignores it."""

    strategy: Literal["ddp", "fsdp2"] = "ddp"
    """ddp: every process holds the whole model. fsdp2: weights, gradients and optimizer state are
    sharded; while engine `hf` generates, every process holds all weights."""
    sequence_parallel: int = Field(1, ge=1)
    """Processes that share the tokens of each micro-batch, so that a prompt too long for one GPU's
    activations can be trained on. It divides the number of processes of a machine, and the model's
    key-value heads."""
    timeout_s: float = Field(1800, gt=0)
    """Seconds that a process waits for the others before it ends the run."""
