"""The section `tracking` of a config."""

from __future__ import annotations

from vlmrl.config.section import Section


class TrackingConfig(Section):
    """Where curves go in addition to metrics.jsonl and the console."""

    tensorboard: bool = True
    """Write TensorBoard event files into the run folder."""
    wandb: str | None = None
    """Project name in Weights & Biases; needs the `wandb` extra."""
    trackio: str | None = None
    """Project name in trackio; needs the `trackio` extra."""
