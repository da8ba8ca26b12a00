"""The section `rollout` of a config."""

from __future__ import annotations

from pydantic import Field

from vlmrl.config.section import Scheduled, Section


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
    """Limits of the rollouts of sources with `tools` or an `environment`."""
    max_staleness: int = Field(0, ge=0)
    """η: batches that are generated ahead while the policy trains. No token is then sampled by
    weights that are more than η updates old. 0: generate, then train. More needs engine vllm_server."""
