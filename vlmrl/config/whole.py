"""A whole config: its sections, and what must hold between them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field, model_validator

from vlmrl import plugins
from vlmrl.config.section import PluginRef, Section
from vlmrl.config.sections.checks import ChecksConfig
from vlmrl.config.sections.control import ControlConfig
from vlmrl.config.sections.data import DataConfig, SourceConfig
from vlmrl.config.sections.distributed import DistributedConfig
from vlmrl.config.sections.evaluation import BenchmarkConfig, EvaluationConfig
from vlmrl.config.sections.model import ModelConfig
from vlmrl.config.sections.optimizer import OptimizerConfig
from vlmrl.config.sections.rewards import NO_REWARDS, RewardConfig, ScoringConfig
from vlmrl.config.sections.rollout import RolloutConfig
from vlmrl.config.sections.run import RunConfig
from vlmrl.config.sections.sft import SftConfig
from vlmrl.config.sections.tracking import Trackers
from vlmrl.errors import UserError
from vlmrl.plugins import nearest


class Config(Section):
    """The config of a run."""

    run: RunConfig = RunConfig()
    """Where the run is written, how long it takes, and what it keeps."""
    resume: str = "never"
    """`never`, `auto` (from the run folder's last whole checkpoint, if any), or a checkpoint's path."""
    model: ModelConfig
    """The policy: a checkpoint, or a small model that is built for the run."""
    data: DataConfig
    """What the policy is trained on."""
    sft: SftConfig | None = None
    """Cold start on demonstrations, before RL. Absent: none."""
    rollout: RolloutConfig = RolloutConfig()
    """How completions are sampled."""
    engine: PluginRef = PluginRef(name="hf")
    """The rollout engine: one of `vlmrl list engines`."""
    rewards: list[RewardConfig] = []
    """Verifiers of every source that has none of its own."""
    scoring: ScoringConfig = ScoringConfig()
    """How the verdicts on one completion become one reward."""
    algorithm: PluginRef = PluginRef(name="grpo")
    """Advantages and loss: one of `vlmrl list algorithms`."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """AdamW, and how a batch of rollouts is divided into updates."""
    distributed: DistributedConfig = DistributedConfig()
    """How several processes train one model."""
    evaluation: EvaluationConfig | None = EvaluationConfig()
    """Held-out evaluation. null: none."""
    checks: ChecksConfig = ChecksConfig()
    """Checks during the run: parity of engine and trainer, media ablation."""
    tracking: Trackers = Field(default={}, validate_default=True)
    """Where curves go in addition to metrics.jsonl and the console."""
    control: ControlConfig = ControlConfig()
    """Control experiments that must not learn."""

    @model_validator(mode="after")
    def _every_source_is_scored(self) -> Config:
        for source in self.data.train:
            rewards = self.rewards_of(source)
            if not rewards:
                raise ValueError(f"source {source.label!r} has no rewards: give it its own, or all")
            labels = [reward.label for reward in rewards]
            for label in labels:
                if labels.count(label) > 1:
                    raise ValueError(f"two rewards are named {label!r}: give one of them a `name`")
                if label in NO_REWARDS:
                    raise ValueError(f"{label!r} is a metric, no reward: give it another `name`")
            if self.scoring.combine != "gate" and any(reward.gate for reward in rewards):
                raise ValueError(
                    f"a reward has gate: true, but scoring.combine is {self.scoring.combine!r}"
                )
        return self

    @model_validator(mode="after")
    def _groups_stay_whole(self) -> Config:
        if self.rollout.prompts % self.optimizer.minibatches:
            raise ValueError(
                f"rollout.prompts ({self.rollout.prompts}) must be a multiple of optimizer.minibatches "
                f"({self.optimizer.minibatches}): groups are never split"
            )
        return self

    @model_validator(mode="after")
    def _lag_is_long_enough(self) -> Config:
        least = self._least_lag(self.data.workers)
        if self.data.sampler.lag is not None and self.data.sampler.lag < least:
            raise ValueError(
                f"data.sampler.lag: expected at least {least} with data.workers {self.data.workers} "
                f"and rollout.max_staleness {self.rollout.max_staleness}, got {self.data.sampler.lag}"
            )
        return self

    @model_validator(mode="after")
    def _metrics_exist(self) -> Config:
        if self.evaluation:
            extra = ("", "sampled/") if self.evaluation.samples else ("",)
            more = _benchmark_metrics(self.evaluation.benchmarks)
            metric = self.evaluation.metric
            self._require_metric("evaluation.metric", metric, self.held_out, extra, more)
        if self.sft and self.sft.stop_at is not None:
            sources = self.sft.validation or self.data.train
            self._require_metric("sft.stop_metric", self.sft.stop_metric, sources)
        return self

    def _require_metric(
        self,
        key: str,
        metric: str,
        sources: Sequence[SourceConfig],
        extra: Sequence[str] = ("",),
        more: Sequence[str] = (),
    ) -> None:
        """Refuse a metric that an evaluation of these sources does not give; it gives `more` too."""
        names = []
        for source in sources:
            given = ["reward", "answered", *(reward.label for reward in self.rewards_of(source))]
            names += [*given, *(f"{source.label}/{name}" for name in given)]
        known = [f"{prefix}{name}" for prefix in extra for name in names] + [*more]
        if metric in known:
            return
        for source in sources:  # a misspelt verifier leaves its metric unknown: that comes first
            for reward in self.rewards_of(source):
                _require_verifier(reward)
        raise ValueError(
            f"{key}: there is no metric {metric!r}{nearest(metric, sorted(set(known)))}"
        )

    @property
    def folder(self) -> Path:
        """The run folder."""
        return Path(self.run.dir) if self.run.dir else Path("runs") / self.run.name

    @property
    def sampler_lag(self) -> int:
        """Batches from a sampler's choice of rows back to the newest rewards that it knows."""
        return self.data.sampler.lag or self._least_lag(workers=1)

    def _least_lag(self, workers: int) -> int:
        """Workers decode two batches ahead, and a thread makes the prompts of two more."""
        return (4 if workers else 1) + self.rollout.max_staleness

    @property
    def named_sources(self) -> list[SourceConfig]:
        """Every source that the config names: to train, to evaluate, for the cold start."""
        evaluated = self.evaluation.sources if self.evaluation else []
        cold_start = [*self.sft.sources, *self.sft.validation] if self.sft else []
        return [*self.data.train, *evaluated, *cold_start]

    @property
    def held_out(self) -> list[SourceConfig]:
        """The sources of the evaluation, their rows limited as it says; empty if there is none."""
        if self.evaluation is None:
            return []
        limit = self.evaluation.limit
        chosen = self.evaluation.sources
        if not chosen and not self.evaluation.benchmarks:
            chosen = [s.model_copy(update={"split": "test"}) for s in self.data.train]
        if limit is None:
            return chosen
        return [s.model_copy(update={"limit": min(limit, s.limit or limit)}) for s in chosen]

    def rewards_of(self, source: SourceConfig) -> list[RewardConfig]:
        """Return a source's own verifiers, else those of the training source of its name, else all's."""
        if source.rewards is not None:
            return source.rewards
        for train in self.data.train:
            if train.label == source.label and train.rewards is not None:
                return train.rewards
        return self.rewards


def _benchmark_metrics(benchmarks: Sequence[BenchmarkConfig]) -> list[str]:
    """Return the metrics that benchmarks give; refuse one that there is not, or that is named twice."""
    names = [one.name for one in benchmarks]
    for name in names:
        try:
            plugins.check("benchmark", name.partition(":")[0])
        except UserError as error:
            raise ValueError(f"evaluation.benchmarks: {error}") from error
        if names.count(name) > 1:
            raise ValueError(f"evaluation.benchmarks: {name!r} is named twice")
    given = ["reward", *(f"{name}/{number}" for name in names for number in ("reward", "strict"))]
    official = [f"{one.name}/official" for one in benchmarks if one.protocol != "ours"]
    return [*given, *official] if names else []


def _require_verifier(reward: RewardConfig) -> None:
    if ":" not in reward.verifier:  # a file of the user's would have to be imported
        try:
            plugins.check("verifier", reward.verifier)
        except UserError as error:
            raise ValueError(f"rewards: {error}") from error
