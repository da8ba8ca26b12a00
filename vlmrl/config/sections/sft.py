"""The section `sft` of a config: the cold start."""

from __future__ import annotations

from pydantic import Field

from vlmrl.config.section import Section
from vlmrl.config.sections.data import SourceConfig


class SftConfig(Section):
    """Cold start: supervised fine-tuning on the cards' demonstrations, before RL."""

    sources: list[SourceConfig] = []
    """Sources of demonstrations. Absent: the training sources."""
    max_steps: int = Field(600, ge=1)
    """Most steps, the decay at the end included."""
    batch_size: int = Field(32, ge=1)
    """Demonstrations per step."""
    lr: float = Field(3e-3, gt=0)
    """Learning rate after the warm-up."""
    warmup_steps: int = Field(50, ge=0)
    """Steps of linear warm-up from 0 to `lr`."""
    weight_decay: float = Field(0.01, ge=0)
    """Weight decay of AdamW."""
    thought_dropout: float = Field(0.0, ge=0, le=1)
    """Share of demonstrations whose thought is replaced by an empty one."""
    last_turn_weight: float = Field(1.0, gt=0)
    """Factor on the loss of the tokens of the last turn, where a demonstration has calls before it: few
    tokens answer, many call."""
    validate_every: int = Field(25, ge=1)
    """Steps between measurements of `stop_metric`."""
    validate_from: int = Field(100, ge=0)
    """First step at which `stop_metric` is measured."""
    stop_metric: str = "reward"
    """Metric of the validation sources that ends the cold start; named as in `evaluation.metric`."""
    stop_at: float | None = None
    """Stop when `stop_metric` reaches this. Absent: run max_steps."""
    validation: list[SourceConfig] = []
    """Validation sources. Absent: the training sources with split `val`."""
    validation_limit: int = Field(96, ge=1)
    """Rows to use of each validation source."""
    decay_steps: int = Field(25, ge=0)
    """Steps of linear decay to a tenth of `lr` after the stop."""
