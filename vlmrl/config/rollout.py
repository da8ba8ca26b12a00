"""The section `rollout` of a config."""

from __future__ import annotations

from pydantic import Field, model_validator

from vlmrl.config.section import Section


class RolloutConfig(Section):
    """How completions are drawn."""

    prompts: int = Field(16, ge=1)
    """P: prompts per step."""
    group_size: int = Field(8, ge=2)
    """G: completions per prompt; an advantage is relative to the others of its group."""
    shuffled_group_size: int = Field(0, ge=0)
    """Completions of a control group for each prompt with a video, which is shown with its frames in
    shuffled order (T-GRPO). They are not trained on; the reward `temporal_contrast` compares. 0: none."""
    max_tokens: int = Field(256, ge=1)
    temperature: float = Field(1.0, gt=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)
    max_staleness: int = Field(0, ge=0)
    """η: batches that are generated ahead while the policy trains, so that no token is by weights
    more than η updates old. 0: generate, then train. More needs an engine that can (vllm_server)."""

    @model_validator(mode="after")
    def _one_policy_for_both_groups(self) -> RolloutConfig:
        if self.shuffled_group_size and self.max_staleness:
            raise ValueError(
                "shuffled_group_size compares two groups of the same weights: set max_staleness or "
                "shuffled_group_size to 0"
            )
        return self
