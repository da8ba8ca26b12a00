"""A whole config: its sections, and what must hold between them."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from vlmrl import plugins
from vlmrl.config import schedule
from vlmrl.config.exclusions import refuse_keys
from vlmrl.config.named_models import NamedModels, name_model
from vlmrl.config.section import Free, PluginRef, Section, refusing
from vlmrl.config.sections.data import HELD_OUT, DataConfig, SourceConfig
from vlmrl.config.sections.model import (
    ClusterConfig,
    DistributedConfig,
    ModelConfig,
    OptimizerConfig,
    ReferenceConfig,
    SftConfig,
    TeacherConfig,
)
from vlmrl.config.sections.rewards import (
    NO_REWARDS,
    RewardConfig,
    RolloutConfig,
    ScoringConfig,
    check_names,
)
from vlmrl.config.sections.run import (
    ChecksConfig,
    ControlConfig,
    EvaluationConfig,
    ResumeConfig,
    RunConfig,
    Trackers,
    benchmark_metrics,
)
from vlmrl.config.tree import merge
from vlmrl.errors import UserError
from vlmrl.plugins import nearest

# --------------------------------------------------------------------------------------------------
# The section `stages` of a config: stretches of training, each with its values laid over the config's.


class StageConfig(Section):
    """A stretch of training with settings of its own, laid over those of the config."""

    name: str | None = None
    """Name in messages and in the report. Absent: its number, from 1."""
    until: float | None = Field(None, gt=0, le=1)
    """Share of training at which it ends. Absent, in the last: the end of training."""
    sources: list[str] | None = Field(None, min_length=1)
    """Names of the training sources that it draws from. Absent: all."""
    template: str | dict[str, Any] | None = None
    """Answer template of all its training sources."""
    data: dict[Literal["train", "system", "video", "audio"], Any] = {}
    """Keys of `data`; a list of sources replaces that of the config."""
    rollout: dict[str, Any] = {}
    """Keys of `rollout`."""
    rewards: list[Any] | None = None
    """Verifiers in place of those of the config, for training."""
    algorithm: str | dict[str, Any] | None = None
    """Algorithm, or options that are laid over those of the config's."""
    optimizer: dict[str, Any] = {}
    """Keys of `optimizer`."""

    @field_validator("rollout", "optimizer")
    @classmethod
    def _keys_may_change(cls, keys: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        section = RolloutConfig if info.field_name == "rollout" else OptimizerConfig
        for key in keys:
            if key not in section.model_fields:
                raise ValueError(f"unknown key {key!r}{nearest(key, sorted(section.model_fields))}")
            if not section.may_change(key):
                raise ValueError(f"{key} is the same during a whole run: no stage may set it")
        return keys


def label(stages: Sequence[StageConfig], index: int) -> str:
    """Return what messages call a stage: its number from 1, and its name if it has one."""
    name = stages[index].name
    return f"stage {index + 1}" + (f" ({name})" if name else "")


def starts(stages: Sequence[StageConfig]) -> list[float]:
    """Return the share of training at which each stage begins; [0.0] without stages."""
    return [0.0, *(stage.until for stage in stages[:-1] if stage.until is not None)]


def check(stages: Sequence[StageConfig]) -> None:
    """Refuse, with a UserError, stages that do not follow each other to the end of training."""
    before = 0.0
    names = [stage.name for stage in stages]
    for index, stage in enumerate(stages):
        if stage.name and stage.name in names[:index]:
            raise UserError(f"stages.{index}.name: two stages are named {stage.name!r}")
        last = index + 1 == len(stages)
        if last and stage.until not in (None, 1):
            raise UserError(f"stages.{index}.until: expected 1 or nothing, got {stage.until}")
        if not last and (stage.until is None or not before < stage.until < 1):
            raise UserError(
                f"stages.{index}.until: expected a share of training above {before:g} and below 1, "
                f"got {stage.until}"
            )
        before = stage.until or 1.0


def lay_over(tree: Mapping[str, object], stage: StageConfig) -> dict[str, Any]:
    """Return a config's plain values, those of a stage laid over them; UserError: a source is not there."""
    own = stage.model_dump(exclude_none=True)
    keys = ("data", "rollout", "rewards", "algorithm", "optimizer")
    # What evaluates is the config's own, and so are the metrics that it may name.
    base = {**tree, "stages": [], "evaluation": None, "sft": None}
    merged = dict(merge(base, {key: own[key] for key in keys if own.get(key)}))
    if stage.rewards is not None:
        merged["rewards"] = stage.rewards
    if stage.template is None and stage.sources is None:
        return merged
    train = [{"card": s} if isinstance(s, str) else s for s in merged["data"]["train"]]
    if stage.sources is not None:
        by_name = {SourceConfig(name=s.get("name"), card=s["card"]).label: s for s in train}
        for name in stage.sources:
            if name not in by_name:
                raise UserError(
                    f"sources: no training source is named {name!r}{nearest(name, list(by_name))}"
                )
        train = [by_name[name] for name in dict.fromkeys(stage.sources)]
    if stage.template is not None:
        train = [{**source, "template": stage.template} for source in train]
    return {**merged, "data": {**merged["data"], "train": train}}


# --------------------------------------------------------------------------------------------------


class Config(Section):
    """The config of a run."""

    run: RunConfig = RunConfig()
    """Where the run is written, how long it takes, and what it keeps."""
    resume: Free[ResumeConfig] = ResumeConfig()
    """Where the run begins: `never`, `auto` or a checkpoint's path."""
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
    strategies: list[PluginRef] = []
    """What is added around the scoring of a batch, in this order: of `vlmrl list strategies`."""
    reference: ReferenceConfig = ReferenceConfig()
    """The frozen model from which the divergence is measured."""
    teacher: TeacherConfig | None = None
    """The model that `on_policy_distillation` learns from. Absent: none."""
    models: NamedModels = {}
    """Frozen models that parts of the config ask, by name: `{verifier: judge, options: {model: NAME}}`."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """AdamW, and how a batch of rollouts is divided into updates."""
    distributed: Free[DistributedConfig] = DistributedConfig()
    """How several processes train one model."""
    cluster: Free[ClusterConfig] = ClusterConfig()
    """Many machines, for `vlmrl launch`."""
    evaluation: EvaluationConfig | None = EvaluationConfig()
    """Held-out evaluation. null: none."""
    checks: Free[ChecksConfig] = ChecksConfig()
    """Checks during the run: parity of engine and trainer, media ablation."""
    tracking: Free[Trackers] = Field(default={}, validate_default=True)
    """Where curves go in addition to metrics.jsonl and the console."""
    control: ControlConfig = ControlConfig()
    """Control experiments that must not learn."""
    stages: list[StageConfig] = []
    """Stretches of training with settings of their own, in one run with one optimizer. Empty: one."""

    @model_validator(mode="after")
    def _every_source_is_scored(self) -> Config:
        for source in self.data.train:
            rewards = self.rewards_of(source)
            if not rewards and not self.trains_scores:
                raise ValueError(f"source {source.label!r} has no rewards: give it its own, or all")
            labels = [reward.label for reward in rewards]
            for label in labels:
                if labels.count(label) > 1:
                    raise ValueError(f"two rewards are named {label!r}: give one of them a `name`")
                if label in NO_REWARDS:
                    raise ValueError(f"{label!r} is a metric, no reward: give it another `name`")
            with refusing():
                check_names(rewards)
        return self

    @model_validator(mode="after")
    def _keys_agree(self) -> Config:
        with refusing():
            for key, value in self.algorithm.options.items():
                schedule.check(value, f"algorithm.options.{key}")
            check(self.stages)
            refuse_keys(self)
        return self

    @model_validator(mode="after")
    def _metrics_exist(self) -> Config:
        if self.trains_scores:
            return self
        if self.evaluation:
            extra = ("", "sampled/") if self.evaluation.samples else ("",)
            more = benchmark_metrics(self.evaluation.benchmarks)
            metric = self.evaluation.metric
            self._require_metric("evaluation.metric", metric, self.held_out, extra, more)
        if self.sft and self.sft.stop_at is not None:
            sources = self.sft.validation or self.data.train
            extra = ("", "sampled/")
            self._require_metric("sft.stop_metric", self.sft.stop_metric, sources, extra)
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
            measured = ["reward", "answered", *(reward.label for reward in self.rewards_of(source))]
            names += [*measured, *(f"{source.label}/{name}" for name in measured)]
        known = [f"{prefix}{name}" for prefix in extra for name in names] + [*more]
        if metric in known:
            return
        for source in sources:  # a misspelt verifier leaves its metric unknown: that comes first
            for reward in self.rewards_of(source):
                if ":" not in reward.verifier:  # a file of the user's would have to be imported
                    with refusing("rewards: "):
                        plugins.check("verifier", reward.verifier)
        raise ValueError(
            f"{key}: there is no metric {metric!r}{nearest(metric, sorted(set(known)))}"
        )

    @property
    def trains_scores(self) -> bool:
        """Whether the run trains a reward model, and no policy that writes."""
        return self.sft is not None and self.sft.objective == "preferences"

    @property
    def schedules(self) -> dict[str, Any]:
        """Every schedule by its key, e.g. `rollout.max_tokens`; those of rewards are not among them."""
        options = {k: v for k, v in self.algorithm.options.items() if schedule.is_schedule(v)}
        weights = {s.label: s._schedules["weight"] for s in self.data.train if s._schedules}
        return {
            **{f"rollout.{key}": plan for key, plan in self.rollout._schedules.items()},
            **{f"optimizer.{key}": plan for key, plan in self.optimizer._schedules.items()},
            **{f"algorithm.options.{key}": plan for key, plan in options.items()},
            **{f"data.train.{label}.weight": plan for label, plan in weights.items()},
        }

    @property
    def is_constant(self) -> bool:
        """Whether the config is the same during the whole run, but for schedules of rewards."""
        return not self.stages and not self.schedules

    @property
    def moments(self) -> list[float]:
        """Each progress at which the config is checked: where a stage or a schedule changes, and 1."""
        if not self.stages:
            moments = {m for plan in self.schedules.values() for m in schedule.moments(plan)}
            return sorted({0.0, *moments, 1.0}) if moments else [0.0]
        moments = {1.0}
        for index, (start, end) in enumerate(pairwise([*starts(self.stages), 1.0])):
            inner = self.of_stage(index).moments
            moments |= {start, *(m for m in inner if start < m < end)}
            moments |= {math.nextafter(end, 0.0)} if len(inner) > 1 else set()
        return sorted(moments)

    def stage_at(self, progress: float) -> int:
        """Return which stage it is at `progress`, from 0."""
        return bisect.bisect(starts(self.stages), progress) - 1

    def of_stage(self, index: int) -> Config:
        """Return the config with a stage's values laid over it; without stages the config itself.

        It has neither evaluation nor cold start: those are not the stages'.

        Raises:
            UserError, ValidationError: the stage's values do not fit; `config.parse` has tried them.
        """
        if not self.stages:
            return self
        tree = lay_over(self.model_dump(mode="json"), self.stages[index])
        return Config.model_validate(tree)

    @property
    def by_stage(self) -> list[Config]:
        """The config of each stage; without stages the config itself."""
        return [self.of_stage(index) for index in range(max(1, len(self.stages)))]

    def at(self, progress: float) -> Config:
        """Return the config as it is at `progress`, the share of training done, in [0, 1].

        It has no stages, and no schedules but those of rewards, which the scorer follows.
        """
        if self.stages:
            return self.of_stage(self.stage_at(progress)).at(progress)
        if not self.schedules:
            return self
        options = {k: schedule.resolve(v, progress) for k, v in self.algorithm.options.items()}
        train = [source.at(progress) for source in self.data.train]
        update = {
            "rollout": self.rollout.at(progress),
            "optimizer": self.optimizer.at(progress),
            "algorithm": self.algorithm.model_copy(update={"options": options}),
            "data": self.data.model_copy(update={"train": train}),
        }
        return self.model_copy(update=update)

    @property
    def changing(self) -> frozenset[str]:
        """The keys of rollout, optimizer and algorithm whose values change during a run."""
        if self.is_constant:
            return frozenset()
        snapshots = [self.values_at(moment) for moment in self.moments]
        keys = {key for values in snapshots for key in values}
        return frozenset(k for k in keys if len({repr(values.get(k)) for values in snapshots}) > 1)

    def values_at(self, progress: float) -> dict[str, Any]:
        """Return the values at `progress` of rollout, optimizer and algorithm, by key."""
        now = self.at(progress)
        places = {
            "rollout": now.rollout.model_dump(),
            "optimizer": now.optimizer.model_dump(),
            "algorithm": {"name": now.algorithm.name},
            "algorithm.options": now.algorithm.options,
        }
        return {f"{prefix}.{k}": v for prefix, values in places.items() for k, v in values.items()}

    def at_step(self, done: int) -> Config:
        """Return the config as it is for the step after `done` finished ones."""
        return self.at(done / max(1, self.run.steps))

    @property
    def last(self) -> Config:
        """The config as it is at the end of training: what an evaluation generates with."""
        return self.at(1.0)

    @property
    def folder(self) -> Path:
        """The run folder."""
        return Path(self.run.dir) if self.run.dir else Path("runs") / self.run.name

    @property
    def sampler_lag(self) -> int:
        """Batches from a sampler's choice of rows back to the newest rewards that it knows."""
        return self.data.sampler.lag or self.least_lag(workers=1)

    def least_lag(self, workers: int) -> int:
        """Return the least lag: workers decode two batches ahead, a thread makes the prompts of two more."""
        return (4 if workers else 1) + self.rollout.max_staleness

    @property
    def named_sources(self) -> list[SourceConfig]:
        """Every source that the config names: to train, to evaluate, for the cold start."""
        evaluated = self.evaluation.sources if self.evaluation else []
        cold_start = [*self.sft.named_sources, *self.sft.validation] if self.sft else []
        return [*self.data.train, *evaluated, *cold_start]

    @property
    def held_out(self) -> list[SourceConfig]:
        """The sources of the evaluation, their rows limited as it says.

        Where none is named and the data have no `test`, `vlmrl.data.source.evaluated` says the split.
        Empty if there is none; a reward model writes nothing, its pairs are `sft.validation`.
        """
        if self.evaluation is None or self.trains_scores:
            return []
        limit = self.evaluation.limit
        chosen = self.evaluation.sources
        if not chosen and not self.evaluation.benchmarks:
            chosen = [source.whole(source.held_out or HELD_OUT[0]) for source in self.data.train]
        if limit is None:
            return chosen
        return [s.model_copy(update={"limit": min(limit, s.limit or limit)}) for s in chosen]

    def rewards_of(self, source: SourceConfig) -> list[RewardConfig]:
        """Return a source's own verifiers, else those of the training source of its name, else all's.

        Options that name one of `models` hold it.
        """
        own = [source, *(train for train in self.data.train if train.label == source.label)]
        rewards = next((s.rewards for s in own if s.rewards is not None), self.rewards)
        return [name_model(reward, self.models, self.model.path) for reward in rewards]
