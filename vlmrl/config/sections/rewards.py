"""The sections `rewards` and `scoring` of a config."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from vlmrl.config import schedule
from vlmrl.config.section import Free, Named, Scheduled, Section, refusing
from vlmrl.errors import UserError
from vlmrl.plugins import nearest

# --------------------------------------------------------------------------------------------------
# The section `rollout` of a config.


class BranchingConfig(Section):
    """Rollouts of a group that begin where another one had just been shown something (ARPO)."""

    initial: int = Field(ge=1)
    """Rollouts of a group that begin at the prompt; fewer than `rollout.group_size`."""
    chance: float = Field(0.5, ge=0, le=1)
    """Probability of branching at a turn at which the policy is as sure as in its first turn."""
    per_entropy: float = 0.2
    """Added to `chance` for each unit of rise; a unit is the entropy of a uniform choice of a token."""
    tokens: int = Field(20, ge=1)
    """The entropy of a turn is summed over this many of its first tokens."""


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
    workers: Free[int] = Field(1, ge=1)
    """Processes that run the tools of a source."""
    branching: BranchingConfig | None = None
    """Let rollouts of training share their first turns with others of their group. Absent: none does."""

    def limits(self) -> dict[str, Any]:
        """Return the limits of one rollout, by name."""
        return self.model_dump(mode="json", exclude={"workers", "branching"})


class ChunksConfig(Section):
    """Completions in chunks: the prompt of each is the question and the end of the one before (Delethink)."""

    count: int = Field(5, ge=2)
    """Most chunks of a completion. The first may have `rollout.max_tokens`, each later one `carry` fewer."""
    carry: int = Field(ge=1)
    """Tokens of what was written that the next chunk begins with; fewer than `rollout.max_tokens`."""
    head: int = Field(0, ge=0)
    """How many of these are the first ones of the completion; fewer than `carry`. The others are the last."""

    @model_validator(mode="after")
    def _carries_its_end(self) -> ChunksConfig:
        if self.head >= self.carry:
            raise ValueError(f"head: expected fewer than carry ({self.carry}), got {self.head}")
        return self


class RolloutConfig(Section):
    """How completions are sampled."""

    prompts: Scheduled[int] = Field(16, ge=1)
    """P: prompts per step."""
    group_size: Scheduled[int] = Field(8, ge=1)
    """G: completions per prompt. An advantage is relative to the other completions of its group, so
    most algorithms need two or more."""
    max_tokens: Scheduled[int] = Field(256, ge=1)
    """Longest completion, in tokens; of completions in `chunks` the longest chunk."""
    temperature: Scheduled[float] = Field(1.0, gt=0)
    """Sampling temperature; log-probs in the loss are at this temperature, too."""
    top_p: Scheduled[float] = Field(1.0, gt=0, le=1)
    """Sample from the smallest set of tokens with this probability. 1: from all."""
    top_k: Scheduled[int] = Field(0, ge=0)
    """Sample from the k likeliest tokens. 0: from all."""
    turns: TurnsConfig = TurnsConfig()
    """Limits of the rollouts of sources with `tools` or an `environment`, and how they branch."""
    chunks: ChunksConfig | None = None
    """Write completions in chunks: what a forward sees at a time does not grow with them. Absent: whole."""
    max_staleness: int = Field(0, ge=0)
    """η: batches that are generated ahead while the policy trains. No token is then sampled by
    weights that are more than η updates old. 0: generate, then train. More needs engine vllm_server."""
    streaming: bool = False
    """With `max_staleness` of at least 1: train on the first P groups that are finished, of whichever
    batches, so that no step waits for the longest completion of a batch. Tokens that are more than
    η updates old by then have no part in the policy's loss."""

    @model_validator(mode="after")
    def _streams_run_ahead(self) -> RolloutConfig:
        if self.streaming and not self.max_staleness:
            raise ValueError(
                "streaming: true needs max_staleness of at least 1, got 0: with nothing generated ahead a "
                "step waits for every group of its batch"
            )
        return self

    @model_validator(mode="after")
    def _some_rollouts_may_branch(self) -> RolloutConfig:
        branching = self.turns.branching
        if branching and branching.initial >= self.group_size:
            raise ValueError(
                f"turns.branching.initial: expected fewer than group_size ({self.group_size}), got "
                f"{branching.initial}: the others branch"
            )
        return self

    @model_validator(mode="after")
    def _chunks_have_tokens_of_their_own(self) -> RolloutConfig:
        if self.chunks and self.chunks.carry >= self.max_tokens:
            raise ValueError(
                f"chunks.carry: expected fewer than max_tokens ({self.max_tokens}), got "
                f"{self.chunks.carry}: a later chunk has what is left"
            )
        return self

    @property
    def longest(self) -> int:
        """Most tokens of a completion of one turn, in all of its chunks."""
        chunks = self.chunks
        later = (chunks.count - 1) * (self.max_tokens - chunks.carry) if chunks else 0
        return self.max_tokens + later


# --------------------------------------------------------------------------------------------------
# The sections `rewards` and `scoring` of a config.


NO_REWARDS = ("reward", "mean", "std", "answered", "length", "share")
"""Metrics that share the rewards' place: a reward of such a name would put two curves in one."""


class RewardConfig(Named):
    """One verifier among the rewards of a source.

    An option or the weight may be a schedule over training: `{schedule: [[0, 0.5], [0.5, 0.75]]}`
    means 0.5 from the start and 0.75 from half of the steps on.
    """

    short = "verifier"
    verifier: str
    """One of `vlmrl list verifiers`, or `path/to/file.py:name`."""
    name: str | None = None
    """Name of its curve. Absent: the verifier's own name."""
    weight: float | dict[Literal["schedule"], list[tuple[float, float]] | dict[str, Any]] = 1.0
    """Weight of its score in the reward; a number or a schedule."""
    tag: str | None = None
    """Tag of the template whose content it grades; a completion without it has no answer. Absent: the
    template's answer. Only of a verifier that judges single completions."""
    gate: bool = False
    """With `scoring.combine: gate`: unless this score exceeds `gate_above`, the whole reward is 0."""
    gate_above: float = 0.0
    """What the score of a gate must exceed."""
    gated_by: dict[str, float] = Field(default_factory=dict)
    """Names of other rewards, each with what its score must exceed: unless all do, this one counts as 0."""
    max_score: float | None = None
    """What is above it counts as this much: the score is saturated. Absent: no limit."""
    max_with: str | None = None
    """Name of a reward that counts as the maximum of its own score and of w·s of this one, which is
    not counted by itself."""
    multiplies: str | None = None
    """Name of a reward that is multiplied by 1 + w·s of this one, which is not counted by itself."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the verifier; each a value or a schedule."""
    timeout_s: Free[float | None] = Field(None, gt=0)
    """Seconds for one call, which then runs in a process that can be killed. Absent: 30 for verifiers
    of your own, 5 for slow shipped ones; other shipped ones run in line."""

    @field_validator("weight", "options", mode="before")
    @classmethod
    def _schedules_are_sound(cls, value: object, info: ValidationInfo) -> Any:
        named = {"": value} if info.field_name == "weight" else value
        for key, plan in named.items() if isinstance(named, dict) else ():
            with refusing():
                schedule.check(plan, key and f"option {key!r}")
        return value

    @model_validator(mode="after")
    def _has_one_part(self) -> RewardConfig:
        if self.gate_above and not self.gate:
            raise ValueError("gate_above is of a gate: expected gate: true beside it")
        parts = {"gate": self.gate, "max_with": self.max_with, "multiplies": self.multiplies}
        if len(keys := [key for key, value in parts.items() if value]) > 1:
            raise ValueError(
                f"expected at most one of {', '.join(parts)}, got {' and '.join(keys)}"
            )
        return self

    @property
    def label(self) -> str:
        """The name of its curve."""
        return self.name or self.verifier.rpartition(":")[2]

    @property
    def counts_in(self) -> str | None:
        """The name of the reward that it is a part of; None: it is counted by itself."""
        return self.max_with or self.multiplies


class ScoringConfig(Section):
    """How the verdicts on one completion become one reward."""

    combine: Literal["sum", "mean", "product", "gate"] = "sum"
    """sum: Σ w·s; mean: Σ w·s / Σ w over the verifiers that apply; product: Π s; gate: the mean if
    every gate is positive, else 0."""
    truncated: Literal["score", "zero", "mask"] = "score"
    """What a completion that was cut at the token limit gets: its score, 0, or no part in training."""
    workers: Free[int] = Field(2, ge=1)
    """Processes of the pool for verifiers with a time limit."""
    worker_memory_mb: Free[int] = Field(4096, ge=64)
    """MiB that one of these processes may take beyond what its verifiers load at first. A call that
    needs more ends the process (Linux only); every process is replaced after 10,000 calls as well."""
    fault_limit: float = Field(0.2, gt=0, le=1)
    """Stop the run when more than this share of one verifier's recent calls failed."""


def check_names(rewards: Sequence[RewardConfig]) -> None:
    """Refuse, with a UserError, what rewards say of others that their source lacks, or of parts."""
    by_label = {reward.label: reward for reward in rewards}
    for reward in rewards:
        others = sorted(by_label.keys() - {reward.label})
        named = {"max_with": reward.max_with, "multiplies": reward.multiplies}
        keys = [(key, name) for key, name in named.items() if name is not None]
        for key, name in [*keys, *(("gated_by", name) for name in reward.gated_by)]:
            where = f"reward {reward.label!r}: {key}"
            if name not in others:
                raise UserError(
                    f"{where}: expected the name of another reward of its source, got {name!r}"
                    f"{nearest(name, others)}"
                )
            if key != "gated_by" and (whole := by_label[name].counts_in) is not None:
                raise UserError(
                    f"{where}: expected a reward that is counted by itself, got {name!r}, which is a "
                    f"part of {whole!r}"
                )
