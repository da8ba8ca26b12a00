"""The config: pydantic models, YAML with `extends`, `key=value` overrides, JSON schema for editors.

Unknown keys, wrong types, missing files and impossible combinations each become one line that names
the key's path and the nearest valid name. This module never imports torch.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from vlmrl.errors import UserError
from vlmrl.plugins import nearest


class Section(BaseModel):
    """A part of the config; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PluginRef(Section):
    """A plugin by name with its options; a bare string stands for the name alone."""

    name: str
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


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
    keep: int = Field(2, ge=1)
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
    vocab_size: int = Field(512, ge=280)
    """Upper bound of the tokenizer that is trained on the cards' text."""


class LoraConfig(Section):
    """Low-rank adapters through peft."""

    rank: int = Field(16, ge=1)
    alpha: float = 32
    dropout: float = Field(0.0, ge=0, lt=1)
    towers: list[Literal["vision", "projector", "language"]] = ["language"]


class ModelConfig(Section):
    """The policy: a checkpoint folder (or hub name), or a small model built on the spot."""

    path: str | None = None
    build: BuildConfig | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    freeze: list[Literal["vision", "projector", "language"]] = []
    lora: LoraConfig | None = None
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
        if self.min_pixels and self.max_pixels and self.min_pixels > self.max_pixels:
            raise ValueError(f"min_pixels {self.min_pixels} exceeds max_pixels {self.max_pixels}")
        return self


class RewardConfig(Section):
    """One verifier among the rewards of a source.

    An option or the weight may be a schedule over training progress: `{schedule: [[0, 0.5], [0.5, 0.75]]}`
    means 0.5 from the start and 0.75 from half of the steps on.
    """

    verifier: str
    name: str | None = None
    """Name of its curve; the verifier's own name when absent."""
    weight: float | dict[Literal["schedule"], list[tuple[float, float]]] = 1.0
    gate: bool = False
    """combine: gate: this component must be positive, else the whole reward is 0."""
    options: dict[str, Any] = Field(default_factory=dict)
    deadline: float | None = Field(None, gt=0)
    """Seconds for one call; set: calls run in a pool of killable processes."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"verifier": value} if isinstance(value, str) else value

    @property
    def label(self) -> str:
        """The name of its curve."""
        return self.name or self.verifier.rpartition(":")[2]


class ScoringConfig(Section):
    """How the verdicts on one completion become one reward."""

    combine: Literal["sum", "mean", "product", "gate"] = "sum"
    """sum: Σ w·s; mean: Σ w·s / Σ w over what applies; product: Π s; gate: mean if every gate > 0."""
    truncated: Literal["score", "zero", "mask"] = "score"
    """What happens to a completion cut at the token limit."""
    workers: int = Field(2, ge=1)
    """Processes of the deadline pool."""
    fault_limit: float = Field(0.2, gt=0, le=1)
    """Stop the run when more than this share of one verifier's recent calls failed."""


class SourceConfig(Section):
    """One source of samples: a card (shipped, or `file.py:Name`) or a data file with a column map."""

    name: str | None = None
    card: str
    options: dict[str, Any] = Field(default_factory=dict)
    split: str = "train"
    weight: float = Field(1.0, gt=0)
    """Share in the mixture, relative to the other sources."""
    template: str | None = None
    """Answer template of its samples; absent: the card's choice."""
    instruct: bool = True
    """Append the template's instruction ("think in <think> ... answer in <answer> ...") to the question."""
    rewards: list[RewardConfig] | None = None
    """This source's own verifiers; the config's `rewards` when absent."""
    limit: int | None = Field(None, ge=1)
    """Use only the first N rows."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"card": value} if isinstance(value, str) else value

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
    """Processes that decode media ahead; 0 decodes in line."""
    prefetch_mb: int = Field(256, ge=1)
    """Bound on decoded media waiting in memory, MiB."""
    quarantine_limit: float = Field(0.05, ge=0, le=1)
    """Stop when more than this share of the rows seen (after the first 20) is bad."""
    allow_urls: bool = False
    root: str | None = None
    """Media paths must stay inside this folder; absent: the data file's folder."""

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
    """Completions per prompt at temperature 1 besides the greedy one; pass@k is reported for them."""
    limit: int | None = Field(None, ge=1)
    batch: int = Field(32, ge=1)
    metric: str = "reward"
    """Best checkpoint by this: `reward`, a verifier's name, or `<source>/<verifier>`."""
    bootstrap: int = Field(1000, ge=100)


class SftConfig(Section):
    """Cold start on the cards' demonstrations, before RL."""

    sources: list[SourceConfig] = []
    """Absent: the training sources."""
    max_steps: int = Field(600, ge=1)
    batch: int = Field(32, ge=1)
    lr: float = Field(3e-3, gt=0)
    warmup_steps: int = Field(50, ge=0)
    weight_decay: float = Field(0.01, ge=0)
    thought_dropout: float = Field(0.0, ge=0, le=1)
    """Share of demonstrations whose thought is replaced by an empty one."""
    check_every: int = Field(25, ge=1)
    check_from: int = Field(100, ge=0)
    stop_metric: str = "reward"
    stop_at: float | None = None
    """Stop when the metric of the validation sources reaches this; absent: run max_steps."""
    validation: list[SourceConfig] = []
    """Absent: the training sources with split `val`."""
    validation_limit: int = Field(96, ge=1)
    decay_steps: int = Field(25, ge=0)
    """Steps of linear decay to a tenth of the lr after the stop."""


class RolloutConfig(Section):
    """How completions are drawn."""

    prompts: int = Field(16, ge=1)
    """P: prompts per step."""
    group_size: int = Field(8, ge=1)
    """G: completions per prompt."""
    max_tokens: int = Field(256, ge=1)
    temperature: float = Field(1.0, gt=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)


class OptimizerConfig(Section):
    """AdamW and the cut of a batch into updates."""

    lr: float = Field(1e-6, gt=0)
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    clip_norm: float = Field(1.0, gt=0)
    warmup_steps: int = Field(0, ge=0)
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    updates: int = Field(1, ge=1)
    """Optimizer updates per batch of rollouts (groups are split among them); 1 is on-policy."""
    epochs: int = Field(1, ge=1)
    """Passes over each batch of rollouts."""
    micro_tokens: int = Field(16384, ge=1)
    """Tokens per forward, prompt copies and padding included; whole groups go together."""


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
    """`never`, `auto` (continue the run folder's last whole checkpoint, if any), or a checkpoint path."""
    model: ModelConfig
    data: DataConfig
    sft: SftConfig | None = None
    rollout: RolloutConfig = RolloutConfig()
    engine: PluginRef = PluginRef(name="hf")
    rewards: list[RewardConfig] = []
    scoring: ScoringConfig = ScoringConfig()
    algorithm: PluginRef = PluginRef(name="grpo")
    optimizer: OptimizerConfig = OptimizerConfig()
    evaluation: EvaluationConfig | None = EvaluationConfig()
    tracking: TrackingConfig = TrackingConfig()
    control: ControlConfig = ControlConfig()

    @field_validator("algorithm", "engine", mode="before")
    @classmethod
    def _name_keeps_no_options(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _every_source_is_scored(self) -> Config:
        for source in self.data.train:
            if source.rewards is None and not self.rewards:
                raise ValueError(f"source {source.label!r} has no rewards: set `rewards` for all sources or its own")
        if self.rollout.prompts % self.optimizer.updates:
            raise ValueError(
                f"rollout.prompts ({self.rollout.prompts}) must be a multiple of optimizer.updates "
                f"({self.optimizer.updates}): groups are never split"
            )
        return self

    @property
    def folder(self) -> Path:
        """The run folder."""
        return Path(self.run.dir) if self.run.dir else Path("runs") / self.run.name

    def rewards_of(self, source: SourceConfig) -> list[RewardConfig]:
        """The verifiers of a source: its own, else those of the training source of that name, else all's."""
        if source.rewards is not None:
            return source.rewards
        for train in self.data.train:
            if train.label == source.label and train.rewards is not None:
                return train.rewards
        return self.rewards


def load(name: str, overrides: Sequence[str] = ()) -> Config:
    """Read a config by path or shipped name and apply `key=value` overrides.

    Raises:
        UserError: one line per problem, each with the key's path.
    """
    tree = read_tree(name)
    for override in overrides:
        _override(tree, override)
    return parse(tree, name)


def parse(tree: Mapping[str, Any], name: str = "config") -> Config:
    """Validate a tree of plain values; `name` starts every error message."""
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise UserError("\n".join(_line(name, problem) for problem in error.errors())) from error


def read_tree(name: str, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The merged plain values of a config file and everything it extends."""
    path = find(name, base=seen[-1].parent if seen else None)
    if path in seen:
        raise UserError(f"{path}: extends itself through {' -> '.join(p.name for p in seen)}")
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict):
        raise UserError(f"{path}: a config is a mapping of sections, found {type(tree).__name__}")
    parent = tree.pop("extends", None)
    if parent is None:
        return tree
    return merge(read_tree(str(parent), (*seen, path)), tree)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`, mappings merged key by key, everything else replaced."""
    out = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
        # A plugin of another name must not inherit the options of the one it replaces.
        if both and "name" in value and key in ("algorithm", "engine"):
            both = out[key].get("name") == value["name"]
        out[key] = merge(out[key], value) if both else value
    return out


def shipped() -> dict[str, Path]:
    """The shipped configs by name."""
    import vlmrl.configs  # a namespace package: rewards/, datasets/, configs/ have no __init__.py

    folders = [Path(p) for p in vlmrl.configs.__path__]
    return {f.stem: f for folder in folders for f in sorted(folder.glob("*.yaml"))}


def find(name: str, base: Path | None = None) -> Path:
    """The file a config name or path means."""
    for path in [Path(name), *([base / name, base / f"{name}.yaml"] if base else [])]:
        if path.is_file():
            return path.resolve()
    known = shipped()
    if name in known:
        return known[name].resolve()
    raise UserError(f"no config file and no shipped config is named {name!r}{nearest(name, sorted(known))}")


def schema() -> str:
    """JSON schema of the config, for editors."""
    return json.dumps(Config.model_json_schema(), indent=2)


def _override(tree: dict[str, Any], text: str) -> None:
    key, eq, raw = text.partition("=")
    if not eq or not key:
        raise UserError(f"override {text!r}: write key=value, e.g. run.steps=50")
    try:
        value = yaml.safe_load(_exponent(raw)) if raw else None
    except yaml.YAMLError as error:
        raise UserError(f"override {text!r}: the value is not valid YAML") from error
    *path, last = key.split(".")
    node: Any = tree
    for i, part in enumerate(path):
        if isinstance(node, dict):
            if isinstance(node.get(part), str):  # `algorithm: grpo` + algorithm.options.x=1
                node[part] = {"name": node[part]}
            if node.get(part) is None:
                node[part] = {}
        node = _child(node, part, text, ".".join(path[: i + 1]))
    if isinstance(node, list):
        node[_index(node, last, text)] = value
    elif isinstance(node, dict):
        node[last] = value
    else:
        raise UserError(f"override {text!r}: {'.'.join(path)} is a single value, it has no {last!r}")


def _exponent(raw: str) -> str:
    # YAML 1.1 reads 1e-4 as text; a person means a number.
    try:
        float(raw)
    except ValueError:
        return raw
    return repr(float(raw)) if "e" in raw.lower() and "n" not in raw.lower() else raw


def _child(node: Any, part: str, text: str, where: str) -> Any:
    if isinstance(node, list):
        return node[_index(node, part, text)]
    if isinstance(node, dict):
        return node[part]
    raise UserError(f"override {text!r}: {where} is a single value, it has no parts")


def _index(node: list[Any], part: str, text: str) -> int:
    # List entries are named by position, or by their own name, card or verifier.
    if part.isdigit() and int(part) < len(node):
        return int(part)
    entries = [
        next((e[k] for k in ("name", "card", "verifier") if e.get(k)), "") if isinstance(e, dict) else str(e)
        for e in node
    ]
    if part in entries:
        return entries.index(part)
    raise UserError(f"override {text!r}: no entry {part!r}{nearest(part, entries)}")


def _line(name: str, problem: Any) -> str:
    path = ".".join(str(p) for p in problem["loc"]) or "(top)"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        known = _known_keys(problem["loc"][:-1])
        message = f"unknown key{_suggest(str(problem['loc'][-1]), known)}"
    elif problem["type"] == "missing":
        message = "this key is required"
    elif not isinstance(problem.get("input"), (dict, list)):
        message = f"{message} (found {problem.get('input')!r})"
    return f"{name}: {path}: {message}"


def _suggest(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; allowed: {', '.join(known)}"


def _known_keys(path: Sequence[Any]) -> list[str]:
    model: Any = Config
    for part in path:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[part].annotation
        model = _section_in(annotation) or model
    return sorted(model.model_fields)


def _section_in(annotation: Any) -> type[Section] | None:
    import typing

    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    for inner in typing.get_args(annotation):
        if found := _section_in(inner):
            return found
    return None
