"""A whole config: its sections, and what must hold between them."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from vlmrl.config.section import PluginRef, Section
from vlmrl.config.sections.checks import ChecksConfig
from vlmrl.config.sections.control import ControlConfig
from vlmrl.config.sections.data import DataConfig, SourceConfig
from vlmrl.config.sections.distributed import DistributedConfig
from vlmrl.config.sections.evaluation import EvaluationConfig
from vlmrl.config.sections.model import ModelConfig
from vlmrl.config.sections.optimizer import OptimizerConfig
from vlmrl.config.sections.rewards import NO_REWARDS, RewardConfig, ScoringConfig
from vlmrl.config.sections.rollout import RolloutConfig
from vlmrl.config.sections.run import RunConfig
from vlmrl.config.sections.sft import SftConfig
from vlmrl.config.sections.tracking import Trackers
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
    def _metrics_exist(self) -> Config:
        if self.evaluation:
            known = self._metrics(self.evaluation.sources)
            if self.evaluation.samples:
                known += [f"sampled/{name}" for name in known]
            _require("evaluation.metric", self.evaluation.metric, known)
        if self.sft and self.sft.stop_at is not None:
            _require("sft.stop_metric", self.sft.stop_metric, self._metrics(self.sft.validation))
        return self

    def _metrics(self, sources: list[SourceConfig]) -> list[str]:
        """The metrics an evaluation of these sources (none: the training sources) gives."""
        found: list[str] = []
        for source in sources or self.data.train:
            names = ["reward", "answered", *(reward.label for reward in self.rewards_of(source))]
            found += [*names, *(f"{source.label}/{name}" for name in names)]
        return found

    @property
    def folder(self) -> Path:
        """The run folder."""
        return Path(self.run.dir) if self.run.dir else Path("runs") / self.run.name

    def rewards_of(self, source: SourceConfig) -> list[RewardConfig]:
        """A source's own verifiers, else those of the training source of its name, else all's."""
        if source.rewards is not None:
            return source.rewards
        for train in self.data.train:
            if train.label == source.label and train.rewards is not None:
                return train.rewards
        return self.rewards


def _require(key: str, name: str, known: list[str]) -> None:
    if name not in known:
        raise ValueError(f"{key}: there is no metric {name!r}{nearest(name, sorted(set(known)))}")
