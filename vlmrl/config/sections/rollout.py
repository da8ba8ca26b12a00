"""The section `rollout` of a config."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from vlmrl.config.section import Scheduled, Section


class BranchingConfig(Section):
    """Rollouts of a group that begin where another one had just been shown something (ARPO)."""

    initial: int = Field(ge=1)
    """Rollouts of a group that begin at the prompt; fewer than `rollout.group_size`."""
    chance: float = Field(0.5, ge=0, le=1)
    """Probability to branch off a turn at whose start the policy is as sure as in its first turn."""
    per_entropy: float = 0.2
    """What is added to it for a rise of the entropy by that of a uniform choice of all tokens."""
    tokens: int = Field(20, ge=1)
    """First tokens of a turn of which the entropy is taken."""


class TurnsConfig(Section):
    """What a rollout of several turns may take. An observation that would not fit ends it."""

    max_turns: int = Field(4, ge=1)
    """Most turns of the policy; on the last one no tool runs, but actions in an environment do."""
    max_tokens: int = Field(2048, ge=1)
    """Most tokens that the policy writes in all turns; those of one turn are `rollout.max_tokens`."""
    max_length: int = Field(8192, ge=1)
    """Most tokens of the prompt and all that follows it."""
    max_images: int = Field(8, ge=0)
    """Most images, videos and audios that tools show."""
    max_seconds: float = Field(120.0, gt=0)
    """Most seconds that tools take for one rollout."""
    fault_limit: float = Field(0.5, ge=0, le=1)
    """Stop when more than this share of the last 200 calls failed."""
    workers: int = Field(1, ge=1)
    """Processes that run the tools of a source."""
    branching: BranchingConfig | None = None
    """Let rollouts of training share their first turns with others of their group. Absent: none does."""

    def limits(self) -> dict[str, Any]:
        """Return the limits of one rollout, by name."""
        return self.model_dump(mode="json", exclude={"workers", "branching"})


class RolloutConfig(Section):
    """How completions are sampled."""

    prompts: Scheduled[int] = Field(16, ge=1)
    """P: prompts per step."""
    group_size: Scheduled[int] = Field(8, ge=1)
    """G: completions per prompt. An advantage is relative to the other completions of its group, so
    most algorithms need two or more."""
    max_tokens: Scheduled[int] = Field(256, ge=1)
    """Longest completion, in tokens."""
    temperature: Scheduled[float] = Field(1.0, gt=0)
    """Sampling temperature; log-probs in the loss are at this temperature, too."""
    top_p: Scheduled[float] = Field(1.0, gt=0, le=1)
    """Sample from the smallest set of tokens with this probability. 1: from all."""
    top_k: Scheduled[int] = Field(0, ge=0)
    """Sample from the k likeliest tokens. 0: from all."""
    turns: TurnsConfig = TurnsConfig()
    """Limits of the rollouts of sources with `tools` or an `environment`, and how they branch."""
    max_staleness: int = Field(0, ge=0)
    """η: batches that are generated ahead while the policy trains. No token is then sampled by
    weights that are more than η updates old. 0: generate, then train. More needs engine vllm_server."""

    @model_validator(mode="after")
    def _some_rollouts_may_branch(self) -> RolloutConfig:
        branching = self.turns.branching
        if branching and branching.initial >= self.group_size:
            raise ValueError(
                f"turns.branching.initial: expected fewer than group_size ({self.group_size}), got "
                f"{branching.initial}: the others branch"
            )
        return self
