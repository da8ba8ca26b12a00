"""The sections `model`, `reference`, `teacher` and `models` of a config: the policy, and models beside it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from vlmrl.config.section import Fixed, Free, Scheduled, Section, Unfixed
from vlmrl.config.sections.data import SourceConfig

# --------------------------------------------------------------------------------------------------
# The sections `distributed` and `cluster` of a config.


class DistributedConfig(Section):
    """How several processes (`torchrun`) train one model. A single process ignores it."""

    strategy: Literal["ddp", "fsdp2"] = "ddp"
    """ddp: every process holds the whole model. fsdp2: weights, gradients and optimizer state are
    sharded; while engine `hf` generates, every process holds all weights."""
    replicas: int = Field(1, ge=1)
    """Copies of the weights with fsdp2: each is sharded over equally many consecutive processes, which
    alone gather it; gradients are summed over all. It divides the number of processes."""
    sequence_parallel: int = Field(1, ge=1)
    """Processes that share the tokens of each micro-batch, so that a prompt too long for one GPU's
    activations can be trained on. It divides the number of processes of a machine, and the model's
    key-value heads."""
    timeout_s: float = Field(1800, gt=0)
    """Seconds that a process waits for the others before it ends the run."""

    @model_validator(mode="after")
    def _require_sharding(self) -> DistributedConfig:
        if self.replicas > 1 and self.strategy == "ddp":
            raise ValueError(
                f"replicas: expected 1 with strategy ddp, where every process holds a replica, got "
                f"{self.replicas}; use strategy fsdp2"
            )
        return self


class TrainPlacesConfig(Section):
    """How many processes `vlmrl launch` trains with, and on how many nodes."""

    nodes: int = Field(1, ge=1)
    """Nodes, each with as many processes; `--nodes` is the same."""
    gpus_per_node: int = Field(1, ge=1)
    """GPUs of each node, one a process; where no node has a GPU, CPUs. `--gpus-per-node` is the same."""


class ServePlacesConfig(Section):
    """Servers of rollouts that `vlmrl launch` keeps for engine `vllm_server`."""

    replicas: int = Field(0, ge=0)
    """Servers at most. 0: the engine has its own."""
    gpus: int = Field(1, ge=0)
    """GPUs of each, on one node; more than one is tensor parallelism."""


class ClusterConfig(Section):
    """Where `vlmrl launch` runs the config with Ray. `vlmrl train` ignores it."""

    address: str | None = None
    """Address of a running Ray cluster, `HOST:PORT`. Absent: Ray is started on this machine, for one node."""
    train: TrainPlacesConfig = TrainPlacesConfig()
    """The processes that train."""
    serve: ServePlacesConfig = ServePlacesConfig()
    """The servers of rollouts."""
    graders: int = Field(0, ge=0)
    """Graders at most, which run the verifiers that have a time limit, `scoring.workers` processes each, on
    nodes that have as much of Ray's resource `vlmrl_cpu`. 0: the ranks run them."""
    retries: int = Field(3, ge=0)
    """Failed attempts in a row, none of which came to a new checkpoint, after which the run is not
    begun again. A mistake in the config or the data ends it at once."""
    detect_s: float = Field(20, ge=5)
    """Seconds without an answer after which a node is given up, and the run goes on without it."""


# --------------------------------------------------------------------------------------------------
# The section `sft` of a config: the cold start.


Tower = Literal["vision", "audio", "projector", "language"]
"""A part of a model; a family has those of the media that it takes."""


class AlignConfig(Section):
    """A first part of the cold start in which some towers train alone: a new projector, on captions.

    LLaVA's first stage (arXiv:2304.08485, section 4.2). What is not set here is as in `sft`.
    """

    towers: list[Tower] = Field(["projector"], min_length=1)
    """Towers that train in it, of those that train at all."""
    sources: list[SourceConfig] = []
    """Sources of demonstrations, captions say. Absent: those of the cold start."""
    steps: int = Field(ge=1)
    """Steps, the decay at the end included; those of the cold start are counted on from them."""
    lr: float = Field(1e-3, gt=0)
    """Learning rate after the warm-up, of all of these towers."""


class SftConfig(Section):
    """Cold start: supervised fine-tuning on the cards' demonstrations, before RL; or a reward model."""

    objective: Fixed[Literal["imitation", "preferences"]] = "imitation"
    """imitation: of the demonstrations. preferences: a reward model, whose head of one number scores the
    better answer of each pair above the worse one; `run.steps` is 0 then, and the metric `accuracy`, the
    share of held-out pairs in their order."""
    align: Fixed[AlignConfig | None] = None
    """A first part in which some towers train alone. Absent: none."""
    sources: list[SourceConfig] = []
    """Sources of demonstrations. Absent: the training sources."""
    max_steps: int = Field(600, ge=1)
    """Most steps, the decay at the end included, those of `align` not."""
    batch_size: int = Field(32, ge=1)
    """Demonstrations per step."""
    lr: float = Field(3e-3, gt=0)
    """Learning rate after the warm-up."""
    warmup_steps: int = Field(50, ge=0)
    """Steps of linear warm-up from 0 to `lr`."""
    weight_decay: float = Field(0.01, ge=0)
    """Weight decay of AdamW."""
    thought_dropout: float = Field(0.0, ge=0, le=1)
    """Share of demonstrations whose thought is replaced by an empty one."""
    last_turn_weight: float = Field(1.0, gt=0)
    """Factor on the loss of the tokens of the last turn, where a demonstration has calls before it: few
    tokens answer, many call."""
    validate_every: int = Field(25, ge=1)
    """Steps between measurements of `stop_metric`."""
    validate_from: int = Field(100, ge=0)
    """First step at which `stop_metric` is measured."""
    stop_metric: str = "reward"
    """Metric of the validation sources that ends the cold start; named as in `evaluation.metric`. With the
    prefix `sampled/` it is of four sampled completions, as RL will see them: greedy ones may be right while
    samples are still noise, from which RL does not start. With `preferences` it is `accuracy`, and measured
    whether or not it ends it."""
    stop_at: float | None = None
    """Stop when `stop_metric` reaches this. Absent: run max_steps."""
    validation: list[SourceConfig] = []
    """Validation sources. Absent: the training sources with split `val`."""
    validation_limit: int = Field(96, ge=1)
    """Rows to use of each validation source."""
    decay_steps: int = Field(25, ge=0)
    """Steps of linear decay to a tenth of `lr` after the stop."""

    @model_validator(mode="after")
    def _aligns_by_imitation(self) -> SftConfig:
        if self.align and self.objective != "imitation":
            raise ValueError(f"align: expected objective imitation, got {self.objective}")
        return self

    @property
    def aligning(self) -> SftConfig | None:
        """The first part as a cold start of its own, which nothing ends before its last step."""
        if self.align is None:
            return None
        own = {"sources": self.align.sources or self.sources, "lr": self.align.lr}
        return self.model_copy(update={**own, "max_steps": self.align.steps, "stop_at": None})

    @property
    def total_steps(self) -> int:
        """Most steps of all parts."""
        return self.max_steps + (self.align.steps if self.align else 0)

    @property
    def named_sources(self) -> list[SourceConfig]:
        """The sources of demonstrations that it names."""
        return [*(self.align.sources if self.align else []), *self.sources]

    @property
    def metric(self) -> str:
        """The name of what validation measures."""
        return "accuracy" if self.objective == "preferences" else self.stop_metric


# --------------------------------------------------------------------------------------------------
# The sections `model`, `reference`, `teacher` and `models` of a config.


class BuildConfig(Section):
    """A small model of a real architecture, built from nothing, or from `weights` for some of its towers."""

    family: str = "qwen2_5_vl"
    """Model family: one of `vlmrl list families`."""
    text: dict[str, Any] = Field(default_factory=dict)
    """Fields of the text config, e.g. hidden_size, num_hidden_layers."""
    vision: dict[str, Any] = Field(default_factory=dict)
    """Fields of the vision tower's config."""
    audio: dict[str, Any] = Field(default_factory=dict)
    """Fields of the audio tower's config."""
    weights: dict[Literal["vision", "audio", "language"], str] = Field(default_factory=dict)
    """Where a tower's weights are from, e.g. {audio: whisper_base}: one of `vlmrl list weights`, fetched
    once, or a folder or hub name of a published model that has such a tower. The tower takes its sizes,
    and the input its normalisation; fields set above come first. A language model brings its tokenizer, too.
    Absent: random."""
    vocab_size: int = Field(512, ge=280)
    """Upper bound on the vocabulary of the tokenizer, which is trained on the cards' text."""


class LoraConfig(Section):
    """Low-rank adapters through peft."""

    rank: int = Field(16, ge=1)
    """Rank of the adapters."""
    ranks: dict[Tower, Annotated[int, Field(ge=1)]] = {}
    """Ranks of towers that differ from `rank`, e.g. {vision: 8}."""
    alpha: float = 32
    """Scale of the adapters: their output is multiplied by alpha / rank."""
    rslora: bool = False
    """Multiply by alpha / sqrt(rank) instead, so that a higher rank learns no slower (rsLoRA, arXiv
    2312.03732)."""
    dora: bool = False
    """Train the length of each row of the merged weight beside its direction (DoRA, arXiv 2402.09353)."""
    init: Literal["kaiming", "gaussian", "orthogonal"] = "kaiming"
    """How adapters begin, as in peft; with each the first policy is the model without them. orthogonal takes
    even ranks."""
    dropout: Unfixed[float] = Field(0.0, ge=0, lt=1)
    """Dropout on the adapters' input."""
    towers: list[Tower] = ["language"]
    """Towers whose linear layers get an adapter."""
    targets: list[str] = []
    """Which of these layers do: ends of their paths with `*` for anything, e.g. [q_proj, v_proj] or
    ["layers.1?.mlp.*"]. Empty: all."""
    full: list[Literal["vision", "audio", "projector"]] = []
    """Towers whose own weights train beside the adapters, e.g. a projector that is new."""

    @model_validator(mode="after")
    def _one_way(self) -> LoraConfig:
        if both := sorted({*self.towers} & {*self.full}):
            raise ValueError(f"expected each tower in towers or in full, got {both} in both")
        if odd := sorted({*self.ranks} - {*self.towers}):
            raise ValueError(f"ranks: expected towers that are in towers, got {odd}")
        ranks = [self.ranks.get(tower, self.rank) for tower in self.towers]
        if self.init == "orthogonal" and any(rank % 2 for rank in ranks):
            raise ValueError(f"init: orthogonal takes even ranks, got {ranks}")
        return self


class ReferenceConfig(Section):
    """The frozen model from which the divergence is measured: the policy as RL began."""

    refresh_every: int | None = Field(None, ge=1)
    """Steps after which the policy becomes the reference, again and again. Absent: never."""


class TeacherConfig(Section):
    """A model with the policy's family and tokenizer, for algorithms that learn from its log-probs."""

    path: str | None = None
    """Checkpoint folder or hub name, of any size, loaded in every process. Give this, `url` or `model`."""
    url: str | None = None
    """Server that has the model: `vlmrl serve`, `vllm serve --enable-scale-out`, or `python -m
    vlmrl.engines.serve`. Its token is read from VLMRL_TEACHER_TOKEN."""
    model: str | None = None
    """One of `models`, by its name: its `url` or `path`, its key and its `timeout_s`."""
    quantization: Literal["nf4"] | None = None
    """Load the language tower's linear layers of a `path` in 4 bits. Needs bitsandbytes."""
    timeout_s: Free[float] = Field(300.0, gt=0)
    """Seconds within which a server must grade a completion."""

    @model_validator(mode="after")
    def _one_place(self) -> TeacherConfig:
        if sum(source is not None for source in (self.path, self.url, self.model)) != 1:
            raise ValueError("set exactly one of teacher.path, teacher.url and teacher.model")
        if self.quantization and self.url:
            raise ValueError("quantization: the model of a server is loaded there, not here")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url: expected http:// or https://, got {self.url!r}")
        return self


class NamedModelConfig(Section):
    """A frozen model beside the policy, which parts of the config ask by its name: served, or a checkpoint.

    The server speaks the protocol of OpenAI's chat completions, as that of vLLM does. A checkpoint is
    loaded in a process of its own, `vlmrl serve` on the loopback: by each rank that asks it.
    """

    url: str = ""
    """Base address of the server, such as `http://localhost:8000/v1`. Give this or `path`."""
    model: str = ""
    """The server's name of the model; goes with `url`."""
    path: str = ""
    """Checkpoint folder, run folder or hub name; `start`: what the policy starts from (`model.path`)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the weights of a checkpoint, and in which it computes."""
    devices: Free[str | None] = None
    """CUDA_VISIBLE_DEVICES of a checkpoint's process: `"1"`; empty: it computes on the CPU. Absent: the GPU
    of the rank that asks."""
    key_env: Free[str] = "OPENAI_API_KEY"
    """The environment variable that holds the key; unset: none is sent."""
    concurrency: Free[int] = Field(16, ge=1)
    """Questions that each process has under way at a time."""
    timeout_s: Free[float] = Field(60.0, gt=0)
    """Seconds for one question, all its attempts and the pauses between them included, but not the time
    it waits for its turn, nor for a checkpoint to be loaded. A checkpoint's process that lets half of it
    pass is killed and started again."""
    attempts: Free[int] = Field(3, ge=1)
    """Requests for one question. The pauses between them double, or are as long as the server says."""
    max_requests_per_step: int | None = Field(None, ge=1)
    """Requests that each process sends in one step at most; further questions fail. Absent: no limit."""

    @model_validator(mode="after")
    def _is_one_kind(self) -> NamedModelConfig:
        if bool(self.url) == bool(self.path):
            raise ValueError("set exactly one of url and path")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url: expected http:// or https://, got {self.url!r}")
        if bool(self.url) != bool(self.model):
            raise ValueError("url goes with model, the server's name of it, and path goes without")
        for key in ("dtype", "devices") if self.url else ("key_env",):
            if getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"{key} goes with {'path' if self.url else 'url'}")
        return self


class NamedModel(NamedModelConfig):
    """A named model with its name: what a part's option `model` holds once the config has been read."""

    name: str
    """Its key in `models`: the name of its curves and of its files."""


class ModelConfig(Section):
    """The policy: a checkpoint folder or hub name, or a small model that is built for the run."""

    path: Fixed[str | None] = None
    """Checkpoint folder or hub name. Give this or `build`."""
    build: Fixed[BuildConfig | None] = None
    """A small model to build instead of loading one."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type in which the model computes. Weights that train stay float32; with bfloat16 the forward
    runs under autocast and frozen weights are stored in bfloat16."""
    freeze: Fixed[list[Tower]] = []
    """Towers that are not trained."""
    keep_features_gib: Free[float] = Field(0.0, ge=0)
    """GiB of host memory of each process for what frozen towers of media found, kept by content from step
    to step, those of the cold start too, and from evaluation to evaluation: media that come again are not
    computed again. 0: it is kept within a step only."""
    lora: Fixed[LoraConfig | None] = None
    """Train adapters instead of the weights, and the weights of the towers in `full`. Absent: train the
    weights."""
    quantization: Fixed[Literal["nf4"] | None] = None
    """Keep the language tower's linear layers in 4 bits (QLoRA). Needs `lora` and bitsandbytes."""
    gradient_checkpointing: Free[bool] = False
    """Recompute activations in the backward pass: less memory, more time."""
    router_replay: bool = False
    """Choose each token's experts in the update as the engine chose them in the rollout (R3): for
    mixtures of experts, with engine hf, vllm, or on GPUs vllm_server."""
    float32_head: bool = False
    """Compute logits in float32 where all else is in bfloat16, in the update and by engine hf."""
    attention: str | None = None
    """Attention implementation of transformers (sdpa, eager, flash_attention_2 ...)."""
    min_pixels: int | None = Field(None, ge=1)
    """Least pixels of one image; a smaller one is enlarged. Absent: the checkpoint's own."""
    max_pixels: int | None = Field(None, ge=1)
    """Most pixels of one image; a larger one is shrunk. Absent: the checkpoint's own. Both are saved
    with the model."""
    several_images: Literal["tile", "grid"] | None = None
    """How LLaVA-OneVision shows each of several images of a prompt: in one tile, as its authors do, or in a
    grid of tiles like a single image, the only way of vLLM. Saved with the model. Absent: the checkpoint's
    own, else tile."""
    trust_remote_code: Free[bool] = False
    """Run the Python code that comes with the checkpoint."""

    @model_validator(mode="after")
    def _one_origin(self) -> ModelConfig:
        if (self.path is None) == (self.build is None):
            raise ValueError("set exactly one of model.path and model.build")
        if self.quantization and self.lora is None:
            raise ValueError("quantization: weights of 4 bits do not train: set model.lora")
        trained = {*self.lora.towers, *self.lora.full} if self.lora else set()
        if both := sorted(trained & {*self.freeze}):
            raise ValueError(f"freeze: expected towers that lora does not train, got {both}")
        if self.min_pixels and self.max_pixels and self.min_pixels > self.max_pixels:
            raise ValueError(f"min_pixels {self.min_pixels} exceeds max_pixels {self.max_pixels}")
        return self


# --------------------------------------------------------------------------------------------------
# The section `optimizer` of a config.


class OptimizerConfig(Section):
    """AdamW, and how a batch of rollouts is divided into updates."""

    name: Fixed[Literal["adamw", "adamw_8bit", "paged_adamw", "paged_adamw_8bit"]] = "adamw"
    """8bit: the optimizer's state takes a quarter of the memory. paged: its state may leave a full
    GPU. Both through bitsandbytes."""
    lr: Scheduled[float] = Field(1e-6, gt=0)
    """Learning rate after the warm-up."""
    lr_factors: Fixed[dict[Tower, Annotated[float, Field(gt=0)]]] = {}
    """Multiples of `lr` for single towers, e.g. {vision: 0.1, projector: 2}, at every step; in the cold
    start of `sft.lr`."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay rates of AdamW's averages of the gradient and its square."""
    eps: float = Field(1e-8, gt=0)
    """Term that AdamW adds to its denominator."""
    weight_decay: float = Field(0.0, ge=0)
    """Weight decay of AdamW."""
    max_grad_norm: Scheduled[float] = Field(1.0, gt=0)
    """Gradients of a larger norm are scaled down to this norm."""
    warmup_steps: int = Field(0, ge=0)
    """Steps of linear warm-up from 0 to `lr`."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after the warm-up: constant, or falling to 0 at the last step."""
    reset_every: int | None = Field(None, ge=1)
    """Forget AdamW's averages before each N-th step of RL, as Kimi k1.5 does before each. null: never."""
    minibatches: Scheduled[int] = Field(1, ge=1)
    """Minibatches, and so optimizer updates, per batch of rollouts. Groups stay whole. 1: on-policy."""
    epochs: Scheduled[int] = Field(1, ge=1)
    """Passes over each batch of rollouts."""
    micro_batch_tokens: Scheduled[int] = Field(16384, ge=1)
    """Tokens per forward, prompt copies and padding included. Groups stay whole."""
    shared_forward: Literal["auto", "on", "low_memory", "off"] = "auto"
    """Compute the prompt of a group once. auto: where it pays and the model family supports it.
    low_memory: also update on one completion at a time."""
    shared_threshold: float = Field(1.3, ge=1)
    """Ratio G(P + C) / (P + GC) of tokens from which `shared_forward: auto` shares."""
