"""The section `checks` of a config."""

from __future__ import annotations

from pydantic import Field

from vlmrl.config.section import Section


class ChecksConfig(Section):
    """Checks during a run: does the engine compute what the trainer does, does the model use its media?"""

    parity_every: int = Field(50, ge=0)
    """Compare the engine's log-probs with the trainer's at the start, after the first update and
    every N steps; 0: never."""
    parity_tolerance: float | None = Field(None, gt=0)
    """Largest mean difference in nats; a larger one stops the run. Absent: chosen by `model.dtype`."""
    parity_exact: bool = False
    """Also compare engines that are exact by construction (`hf`)."""
    media_ablation_every: int = Field(50, ge=0)
    """Blank and swap the media of a few prompts at the start and every N steps; 0: never."""
    media_ablation_prompts: int = Field(8, ge=2)
    """Prompts whose media are blanked and swapped. They stay in memory."""
    media_ablation_min_drop: float | None = Field(0.01, ge=0)
    """Warn when other media lower the log-prob of the model's own answers by less than this many
    nats per token; absent: never."""
    media_ablation_stop: bool = False
    """Stop the run instead of warning."""
    loopholes_every: int = Field(1, ge=0)
    """Compare the reward with strict readings of the same answers, and with what they earn by other prompts'
    truths, every N steps; 0: never."""
