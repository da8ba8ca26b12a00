"""The section `distributed` of a config."""

from __future__ import annotations

from pydantic import Field

from vlmrl.config.section import Section


class DistributedConfig(Section):
    """How several processes (`torchrun`) train one model; one process takes no notice."""

    timeout_s: float = Field(1800, gt=0)
    """A process that waits longer for the others ends the run."""
