"""The config as pydantic models: one section per part of a run, `Config` for the whole.

A docstring under a field is its documentation; editors show it through the JSON schema.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from vlmrl.config.distributed import DistributedConfig
from vlmrl.config.media import AudioConfig, VideoConfig
from vlmrl.config.rollout import RolloutConfig
from vlmrl.config.section import Named, PluginRef, Section
from vlmrl.plugins import nearest

Tower = Literal["vision", "audio", "projector", "language"]
"""A part of a model; families have those of the media that they take."""


class RunConfig(Section):
    """Where the run lives and how long it goes."""

    name: str = "run"
    dir: str | None = None
    """Run folder; `runs/<name>` when absent."""
    seed: int = 0
    steps: int = Field(100, ge=0)
    """GRPO steps (one step: generate, score, update)."""
    threads: int | None = Field(None, ge=1)
    """CPU threads of torch; absent: torch's own choice."""
    save_every: int = Field(50, ge=1)
    keep_checkpoints: int = Field(2, ge=1)
    """How many recent checkpoints to keep; the best one is kept besides."""
    rollouts_every: int = Field(10, ge=1)
    """Write rollouts/step-N.jsonl every N steps (first and last always)."""
    report: bool = True
    """Write report.html at the end."""


class BuildConfig(Section):
    """A small model of a real architecture, built from nothing (no weights are downloaded)."""

    family: str = "qwen2_5_vl"
    text: dict[str, Any] = Field(default_factory=dict)
    """Fields of the text config, e.g. hidden_size, num_hidden_layers."""
    vision: dict[str, Any] = Field(default_factory=dict)
    """Fields of the vision tower's config."""
    audio: dict[str, Any] = Field(default_factory=dict)
    """Fields of the audio tower's config."""
    vocab_size: int = Field(512, ge=280)
    """Upper bound of the tokenizer that is trained on the cards' text."""


class LoraConfig(Section):
    """Low-rank adapters through peft."""

    rank: int = Field(16, ge=1)
    alpha: float = 32
    dropout: float = Field(0.0, ge=0, lt=1)
    towers: list[Tower] = ["language"]


class ModelConfig(Section):
    """The policy: a checkpoint folder (or hub name), or a small model built on the spot."""

    path: str | None = None
    build: BuildConfig | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    freeze: list[Tower] = []
    lora: LoraConfig | None = None
    quantization: Literal["nf4"] | None = None
    """Keep the language tower's linear layers in 4 bits (QLoRA); needs `lora` and bitsandbytes."""
    gradient_checkpointing: bool = False
    attention: str | None = None
    """Attention implementation of transformers (sdpa, eager, flash_attention_2 ...)."""
    min_pixels: int | None = Field(None, ge=1)
    max_pixels: int | None = Field(None, ge=1)
    """Pixel budget of one image; saved with the model. Absent: the checkpoint's own."""
    trust_remote_code: bool = False

    @model_validator(mode="after")
    def _one_origin(self) -> ModelConfig:
        if (self.path is None) == (self.build is None):
            raise ValueError("set exactly one of model.path and model.build")
        if self.quantization and self.lora is None:
            raise ValueError("quantization: weights of 4 bits do not train: set model.lora")
        if self.min_pixels and self.max_pixels and self.min_pixels > self.max_pixels:
            raise ValueError(f"min_pixels {self.min_pixels} exceeds max_pixels {self.max_pixels}")
        return self


NO_REWARDS = ("reward", "mean", "std", "answered", "length", "share")
"""Metrics that stand where rewards do: a curve of that name would be two in one."""


class RewardConfig(Named):
    """One verifier among the rewards of a source.

    An option or the weight may be a schedule over training progress: `{schedule: [[0, 0.5],
    [0.5, 0.75]]}` means 0.5 from the start and 0.75 from half of the steps on.
    """

    short = "verifier"
    verifier: str
    name: str | None = None
    """Name of its curve; the verifier's own name when absent."""
    weight: float | dict[Literal["schedule"], list[tuple[float, float]]] = 1.0
    gate: bool = False
    """combine: gate: this component must be positive, else the whole reward is 0."""
    options: dict[str, Any] = Field(default_factory=dict)
    timeout_s: float | None = Field(None, gt=0)
    """Seconds for one call; set: calls run in a pool of killable processes."""

    @property
    def label(self) -> str:
        """The name of its curve."""
        return self.name or self.verifier.rpartition(":")[2]


class ScoringConfig(Section):
    """How the verdicts on one completion become one reward."""

    combine: Literal["sum", "mean", "product", "gate"] = "sum"
    """sum: Σ w·s; mean: Σ w·s / Σ w over what applies; product: Π s; gate: the mean if every gate
    is positive, else 0."""
    truncated: Literal["score", "zero", "mask"] = "score"
    """What happens to a completion cut at the token limit."""
    workers: int = Field(2, ge=1)
    """Processes of the deadline pool."""
    fault_limit: float = Field(0.2, gt=0, le=1)
    """Stop the run when more than this share of one verifier's recent calls failed."""


class SourceConfig(Named):
    """One source of samples: a card, shipped or `file.py:Name`, with its options."""

    short = "card"
    name: str | None = None
    card: str
    options: dict[str, Any] = Field(default_factory=dict)
    split: str = "train"
    weight: float = Field(1.0, gt=0)
    """Share in the mixture, relative to the other sources."""
    template: str | None = None
    """Answer template of its samples; absent: the card's choice."""
    instruct: bool = True
    """Append the template's instruction ("think in <think> ...") to the question."""
    rewards: list[RewardConfig] | None = None
    """This source's own verifiers; the config's `rewards` when absent."""
    limit: int | None = Field(None, ge=1)
    """Use only the first N rows."""

    @property
    def label(self) -> str:
        """The name on its curves."""
        return self.name or Path(self.card.rpartition(":")[2]).stem


class DataConfig(Section):
    """What the policy is trained on."""

    train: list[SourceConfig] = Field(min_length=1)
    max_prompt_tokens: int = Field(4096, ge=1)
    """A longer prompt is dropped with a counted reason, never cut."""
    workers: int = Field(0, ge=0)
    """Processes that decode; with any, prompts are made ahead. 0: when a batch is asked for."""
    prefetch_mb: int = Field(256, ge=1)
    """Bound on decoded media, and on finished prompts, that wait in memory, MiB each."""
    quarantine_limit: float = Field(0.05, ge=0, le=1)
    """Stop when more than this share of the rows seen (after the first 20) is bad."""
    allow_urls: bool = False
    media_root: str | None = None
    """Media paths must stay inside this folder; absent: the data file's folder."""
    video: VideoConfig = VideoConfig()
    """Which frames are taken of videos."""
    audio: AudioConfig = AudioConfig()
    """How recordings are read."""
    decode_timeout_s: float = Field(120.0, gt=0)
    """A row whose media take longer to decode is bad."""
    decode_memory_mb: int = Field(1024, ge=64)
    """A row whose videos and recordings take more memory to decode, MiB, is bad."""

    @model_validator(mode="after")
    def _names_differ(self) -> DataConfig:
        labels = [s.label for s in self.train]
        for label in labels:
            if labels.count(label) > 1:
                raise ValueError(f"two sources are named {label!r}: give one of them a `name`")
        return self


class EvaluationConfig(Section):
    """Held-out evaluation with the verifiers that train."""

    sources: list[SourceConfig] = []
    """Absent: the training sources with split `test`."""
    every: int = Field(50, ge=1)
    samples: int = Field(0, ge=0)
    """Completions per prompt at temperature 1, besides the greedy one; pass@k is of these."""
    limit: int | None = Field(None, ge=1)
    batch_size: int = Field(32, ge=1)
    force_thinking: bool = False
    """Also answer every question twice more, greedily, forced to think and forced not to. Only
    where the template begins with a thought."""
    metric: str = "reward"
    """Best checkpoint by this: `reward`, a verifier's name, or `<source>/<verifier>`."""
    pass_threshold: float = 0.5
    """A sample passes (pass@k) when its `metric` reaches this."""
    bootstrap_resamples: int = Field(1000, ge=100)


class SftConfig(Section):
    """Cold start on the cards' demonstrations, before RL."""

    sources: list[SourceConfig] = []
    """Absent: the training sources."""
    max_steps: int = Field(600, ge=1)
    batch_size: int = Field(32, ge=1)
    lr: float = Field(3e-3, gt=0)
    warmup_steps: int = Field(50, ge=0)
    weight_decay: float = Field(0.01, ge=0)
    thought_dropout: float = Field(0.0, ge=0, le=1)
    """Share of demonstrations whose thought is replaced by an empty one."""
    validate_every: int = Field(25, ge=1)
    validate_from: int = Field(100, ge=0)
    stop_metric: str = "reward"
    stop_at: float | None = None
    """Stop when the metric of the validation sources reaches this; absent: run max_steps."""
    validation: list[SourceConfig] = []
    """Absent: the training sources with split `val`."""
    validation_limit: int = Field(96, ge=1)
    decay_steps: int = Field(25, ge=0)
    """Steps of linear decay to a tenth of the lr after the stop."""


class OptimizerConfig(Section):
    """AdamW and the cut of a batch into updates."""

    name: Literal["adamw", "adamw_8bit", "paged_adamw", "paged_adamw_8bit"] = "adamw"
    """8 bits: its state takes a quarter. Paged: its state may leave a full GPU. Both by bitsandbytes."""
    lr: float = Field(1e-6, gt=0)
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    warmup_steps: int = Field(0, ge=0)
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    minibatches: int = Field(1, ge=1)
    """Optimizer updates per batch of rollouts (groups are split among them); 1 is on-policy."""
    epochs: int = Field(1, ge=1)
    """Passes over each batch of rollouts."""
    micro_batch_tokens: int = Field(16384, ge=1)
    """Tokens per forward, prompt copies and padding included; whole groups go together."""
    shared_forward: Literal["auto", "on", "low_memory", "off"] = "auto"
    """Compute the prompt of a group once. `auto`: where it pays and the model family allows it.
    `low_memory`: in the update, its completions one at a time."""
    shared_threshold: float = Field(1.3, ge=1)
    """For `auto`: it pays from this ratio G(P + C) / (P + GC) of tokens on."""


class ChecksConfig(Section):
    """What a run asks of itself now and then: is the engine the trainer's twin, does the model look?"""

    parity_every: int = Field(50, ge=0)
    """Compare the engine's log-probs with the trainer's at the start, after the first update and
    every N steps; 0: never."""
    parity_tolerance: float | None = Field(None, gt=0)
    """Largest mean difference in nats; a larger one stops the run. Absent: by `model.dtype`."""
    parity_exact: bool = False
    """Also compare engines that are exact by construction (`hf`)."""
    media_ablation_every: int = Field(50, ge=0)
    """Blank and swap the media of a few prompts at the start and every N steps; 0: never."""
    media_ablation_prompts: int = Field(8, ge=2)
    media_ablation_min_drop: float | None = Field(0.01, ge=0)
    """Warn when a change of media costs the model's own answers less than this many nats a
    token; absent: never."""
    media_ablation_stop: bool = False
    """Stop the run instead of warning."""


class TrackingConfig(Section):
    """Where curves go besides metrics.jsonl and the console."""

    tensorboard: bool = True
    wandb: str | None = None
    """Project name; needs the `wandb` extra."""
    trackio: str | None = None


class ControlConfig(Section):
    """Controls that must NOT learn; for honest experiments only."""

    shuffle_rewards: bool = False
    """Permute the rewards over the whole batch before advantages."""


class Config(Section):
    """A whole run."""

    run: RunConfig = RunConfig()
    resume: str = "never"
    """`never`, `auto` (the run folder's last whole checkpoint, if any), or a checkpoint's path."""
    model: ModelConfig
    data: DataConfig
    sft: SftConfig | None = None
    rollout: RolloutConfig = RolloutConfig()
    engine: PluginRef = PluginRef(name="hf")
    rewards: list[RewardConfig] = []
    scoring: ScoringConfig = ScoringConfig()
    algorithm: PluginRef = PluginRef(name="grpo")
    optimizer: OptimizerConfig = OptimizerConfig()
    distributed: DistributedConfig = DistributedConfig()
    evaluation: EvaluationConfig | None = EvaluationConfig()
    checks: ChecksConfig = ChecksConfig()
    tracking: TrackingConfig = TrackingConfig()
    control: ControlConfig = ControlConfig()

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
