"""The section `distributed` of a config."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from vlmrl.config.section import Section


class DistributedConfig(Section):
    """How several processes (`torchrun`) train one model; one process takes no notice."""

    strategy: Literal["ddp", "fsdp2"] = "ddp"
    """ddp: every process holds the whole model. fsdp2: weights, gradients and optimizer are sharded;
    while engine `hf` generates, every process has all weights."""
    timeout_s: float = Field(1800, gt=0)
    """A process that waits longer for the others ends the run."""
