"""The section `evaluation` of a config."""

from __future__ import annotations

from pydantic import Field

from vlmrl.config.section import Section
from vlmrl.config.sections.data import SourceConfig


class EvaluationConfig(Section):
    """Held-out evaluation with the verifiers that train."""

    sources: list[SourceConfig] = []
    """Held-out sources. Absent: the training sources with split `test`."""
    every: int = Field(50, ge=1)
    """Steps between evaluations. The model is also evaluated before the first step and after the last."""
    samples: int = Field(0, ge=0)
    """Completions to sample per prompt at temperature 1, in addition to the greedy one; pass@k is
    computed from these."""
    limit: int | None = Field(None, ge=1)
    """Use only the first N rows of each source."""
    batch_size: int = Field(32, ge=1)
    """Prompts to generate at a time."""
    force_thinking: bool = False
    """Also answer every question twice more, greedily: once forced to think and once forced not to.
    Needs a template that begins with a thought."""
    metric: str = "reward"
    """Metric that chooses the best checkpoint: `reward`, a verifier's name, or `<source>/<verifier>`."""
    pass_threshold: float = 0.5
    """A completion passes (pass@k) when its `metric` is at least this."""
    bootstrap_resamples: int = Field(1000, ge=100)
    """Resamples of the bootstrap that gives the 95 % intervals."""
