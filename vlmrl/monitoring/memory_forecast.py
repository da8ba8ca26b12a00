"""A forecast of the memory that a training step needs on its device, or on one of many, before the run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import psutil
import torch

from vlmrl.config import Config
from vlmrl.engines.base import Engine
from vlmrl.engines.vllm_parts.options import VllmOptions
from vlmrl.forward.logprobs import CHUNK, Sharing
from vlmrl.forward.packing import pack_all
from vlmrl.models.cache_sizes import state_bytes, token_bytes
from vlmrl.models.frozen_towers import MEDIA_TOWERS
from vlmrl.policy.gradient_sums import sum_bytes
from vlmrl.policy.optimizers import STATE_SIZE
from vlmrl.policy.policy import Policy
from vlmrl.policy.trainable import decoder_layer_of, tower_of
from vlmrl.schema import Completion, MicroBatch, Parsed, Prompt, PromptBatch, Rollouts


@dataclass(frozen=True, slots=True)
class Spread:
    """How a run is spread over processes: the default is a process by itself."""

    world: int = 1
    """Processes that train; they share the prompts."""
    shards: int = 1
    """Processes over which `fsdp2` shards the weights; 1: each has all of them."""
    capacity: int | None = None
    """Bytes of each process's device; None: those of the device here."""


@dataclass(frozen=True, slots=True)
class RankShare:
    """Bytes of a rank's weights."""

    weights: int
    """Kept all the time: its slices, and what no rank shards."""
    trained: int
    """Those among them that train; their gradients are as large."""
    gathered: int
    """Whole at a time in an update: what is in no layer, with gradients; two layers; a layer's gradients."""
    whole: int
    """The whole model as engine `hf` gathers it to generate; 0 where a rank has it anyway."""


def rank_share(policy: Policy, shards: int) -> RankShare:
    """Return what the first of `shards` ranks keeps of the policy, which is not sharded here."""
    named = dict(policy.base.named_parameters())
    sizes = {name: size_of(p) for name, p in named.items()}
    trains = [name for name, p in named.items() if p.requires_grad]
    if shards == 1:
        return RankShare(sum(sizes.values()), sum(sizes[name] for name in trains), 0, 0)
    frozen = policy.frozen_towers is not None
    left = {n for n in named if frozen and tower_of(n, policy.family) in MEDIA_TOWERS}

    def slice_of(name: str) -> int:
        rows = max(1, len(named[name])) if named[name].ndim else 1
        return sizes[name] if name in left else sizes[name] * -(-rows // shards) // rows

    low = policy.config.dtype == "bfloat16"
    layers: dict[str, list[str]] = {}
    for name in named.keys() - left:
        if layer := decoder_layer_of(name, policy.family):
            layers.setdefault(layer, []).append(name)
    inside = {name for names in layers.values() for name in names}
    loose = named.keys() - left - inside
    gathered_sizes = {n: 2 * named[n].numel() if low else sizes[n] for n in inside}
    largest = max(sum(gathered_sizes[n] for n in names) for names in layers.values())
    # Gradients of a layer, as they are computed and in float32 to be summed.
    gradients = max(
        sum(gathered_sizes[n] + 4 * named[n].numel() for n in names if n in trains)
        for names in layers.values()
    )
    head = policy.family.head(policy.base).weight  # its gradient is among the logits'
    own = {n for n in loose & {*trains} if named[n] is not head}
    outside = sum(sizes[n] for n in loose) + sum(sizes[n] for n in own)
    return RankShare(
        weights=sum(map(slice_of, named)),
        trained=sum(map(slice_of, trains)),
        gathered=outside + 2 * largest + gradients,
        whole=sum(sizes[n] for n in loose) + sum(gathered_sizes.values()),
    )


@contextlib.contextmanager
def as_gathered(policy: Policy) -> Iterator[None]:
    """Keep the layers' weights in bfloat16 inside, as `fsdp2` gathers them: autocast makes no copies."""
    if policy.config.dtype != "bfloat16":
        yield
        return
    kept = [
        (p, p.data)
        for name, p in policy.base.named_parameters()
        if p.requires_grad and decoder_layer_of(name, policy.family)
    ]
    for parameter, data in kept:
        parameter.data = data.to(torch.bfloat16)
    try:
        yield
    finally:
        for parameter, data in kept:
            parameter.data = data


def size_of(tensor: torch.Tensor) -> int:
    """Return the bytes of a weight, with the scales of a 4-bit one."""
    scales = getattr(tensor, "quant_state", None)
    return tensor.nbytes + (scales.absmax.nbytes if scales else 0)


GIB = 2**30
TIGHT = 0.85
"""Share of the device above which fragmentation and other overhead may no longer fit."""

LOWER = {
    "weights": "model.lora with model.quantization=nf4 or model.dtype=bfloat16, or a smaller model",
    "reference": "algorithm.options.kl=0, or model.lora (the reference is then an adapter)",
    "gradients": "model.lora or model.freeze",
    "optimizer": "optimizer.name=adamw_8bit, model.lora or model.freeze",
    "activations": "optimizer.micro_batch_tokens, model.gradient_checkpointing=true, model.max_pixels, "
    "distributed.sequence_parallel",
    "logits": "optimizer.micro_batch_tokens",
    "engine": "engine.options.gpu_memory_utilization or enable_sleep_mode=true, or vllm_server on "
    "another device",
    "kv cache": "engine.options.max_num_seqs, rollout.max_tokens, rollout.prompts",
    "casts": "model.lora or model.freeze",
    "sums": "model.lora or model.freeze",
    "gathered": "model.dtype=bfloat16, model.lora or model.freeze",
    "gathered to generate": "engine.name=vllm or vllm_server",
}
"""What lowers each part, most effective first."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Bytes of each part: constant parts, parts of the update and of generation.

    Generating with the policy itself under autocast keeps a bfloat16 copy of each weight that trains
    (`casts`); those of the update are among its activations. Where weights are sharded they are those of
    one rank: what an update has whole at a time is `gathered`. Where they are not, ranks add up their
    gradients in buckets (`sums`) when the activations are gone.
    """

    parts: dict[str, int]
    capacity: int
    """Bytes of the device."""
    accumulated: bool = True
    """An update has several micro-batches: whole gradients exist together with activations."""
    recomputed: int = 0
    """Bytes of the activations of one layer that checkpointing computes again, of the last one too."""

    @property
    def peak(self) -> int:
        """Return the constant parts plus the larger of what generation and the update add.

        In a single micro-batch gradients appear as activations are freed; checkpointing keeps those of a
        layer until all gradients are there. Gradients stay until the next update.
        """
        parts = self.parts
        gradients = parts["gradients"]
        forward = parts["activations"] + parts["logits"] + parts["gathered"]
        engine = parts["kv cache"] + parts["casts"] + parts["gathered to generate"]
        updating = max(
            gradients + forward if self.accumulated else forward,
            gradients + parts["gathered"] + self.recomputed,
            gradients + parts["sums"],
        )
        stays = sum(parts.values()) - gradients - forward - engine - parts["sums"]
        return stays + max(gradients + engine, updating)

    @property
    def share(self) -> float:
        """Return the peak as a share of the device."""
        return self.peak / self.capacity

    def advice(self) -> str:
        """Say what to lower, beginning with the largest part."""
        largest = sorted(self.parts, key=lambda part: -self.parts[part])[:2]
        return "; ".join(f"{part}: lower with {LOWER[part]}" for part in largest)

    def __str__(self) -> str:
        """Return the parts and their peak in GiB."""
        parts = ", ".join(f"{name} {size / GIB:.2f}" for name, size in self.parts.items() if size)
        return f"{self.peak / GIB:.2f} of {self.capacity / GIB:.1f} GiB ({parts})"


def forecast(
    config: Config,
    policy: Policy,
    engine: Engine,
    prompts: Sequence[Prompt],
    kl: bool,
    whole: Completion | None = None,
    spread: Spread = Spread(),
    counter: Counter | None = None,
) -> Forecast:
    """Forecast the peak of a step with prompts as long as the longest of these, on the policy's device.

    With `spread` it is that of one of several processes. `counter` counts what forwards keep.

    Every completion is assumed to reach the limit, or to be like `whole`, of several turns, with all
    that it is shown. `kl`: the algorithm keeps a reference.
    """
    counter = counter or Counter()
    counter.sharded = spread.shards > 1
    own = counter.share(policy, spread.shards)
    prompt = max(prompts, key=lambda p: len(p.encoded.ids))
    whole = whole or _full(prompt, config.rollout.max_tokens)
    limit = len(whole.token_ids)
    longest = len(prompt.encoded.ids) + len(whole.following_ids)
    prompts_of_rank = -(-config.rollout.prompts // spread.world)
    teams = max(1, spread.world // config.distributed.sequence_parallel)
    trained = -(-config.rollout.prompts // teams) * config.rollout.group_size
    generated = prompts_of_rank * config.rollout.group_size
    rows = max(1, min(config.optimizer.micro_batch_tokens // longest, trained))
    capacity = spread.capacity or _capacity(policy.device)
    if isinstance(engine, VllmOptions):
        on_gpu = SimpleNamespace(device=torch.device("cuda"), weight_bytes=policy.weight_bytes)
        served: Any = policy if spread.capacity is None else on_gpu
        stays, generating = engine.memory(served, capacity)
    else:
        most = getattr(engine, "max_num_seqs", None)
        cached = generated if most is None else min(generated, most)
        generating = cached * _cache_bytes(policy, longest)
        stays = 0 if engine.capabilities.exact else policy.weight_bytes()
    low_memory = config.optimizer.shared_forward == "low_memory"
    activations, again = counter.activations(config, policy, prompt, rows, whole)
    parts = {
        "weights": own.weights,
        "reference": (own.weights if policy.adapter is None else own.trained) if kl else 0,
        "gradients": own.trained,
        "optimizer": round(STATE_SIZE[config.optimizer.name] * own.trained),
        "engine": stays,
        "activations": activations,
        "logits": _logits(policy, limit if low_memory else rows * limit),
        "kv cache": generating,
        "casts": _casts(policy) if engine.capabilities.exact and spread.shards == 1 else 0,
        "sums": sum_bytes(policy.trainable) if spread.world > spread.shards == 1 else 0,
        "gathered": own.gathered,
        "gathered to generate": own.whole if engine.capabilities.exact else 0,
    }
    several = low_memory or rows * config.optimizer.minibatches < trained
    return Forecast(parts, capacity, several, again)


# ---------------------------------------------------------------------------------- activations


def measure_activations(
    config: Config,
    policy: Policy,
    prompt: Prompt,
    rows: int,
    whole: Completion | None = None,
    counter: Counter | None = None,
) -> tuple[int, int]:
    """Return the bytes of activations in the update of a micro-batch of `rows` full-length completions.

    The second number is those of the layer among them that checkpointing computes again. Completions are
    like `whole`, if it is given; `counter` counts.

    They are measured on one or two rows of the forward that the config would choose, since every
    further prompt and completion adds the same. Checkpointing adds one layer, computed again. Ranks that
    share tokens keep a part each, but towers and autocast's copies of weights whole.
    """
    o, group = config.optimizer, config.rollout.group_size
    whole = whole or _full(prompt, config.rollout.max_tokens)
    sharing = Sharing(o.shared_forward, o.shared_threshold, policy.sharing.possible, verified=True)
    counter = counter or Counter()
    if o.shared_forward == "low_memory":
        return counter.saved(policy, _make_micro(prompt, 1, 2, whole), sharing), 0
    groups = -(-rows // group)
    shared = sharing.pays(_make_micro(prompt, 1, min(rows, group), whole))
    sharing = replace(sharing, setting="on" if shared else "off")

    def extrapolate() -> int:
        base, two, two_prompts = (
            counter.saved(policy, _make_micro(prompt, prompts, each, whole), sharing)
            for prompts, each in ((1, 1), (1, 2), (2, 1))
        )
        return base + (rows - 1) * (two - base) + (groups - 1) * (two_prompts - two)

    measured, again = extrapolate(), 0
    if policy.config.gradient_checkpointing:
        policy.checkpoint_layers(False)
        again = (extrapolate() - measured) // policy.base.config.get_text_config().num_hidden_layers
        measured += again
        policy.checkpoint_layers()
    parts = config.distributed.sequence_parallel
    if parts == 1:
        return measured, again
    casts = _casts(policy, counter.sharded)
    everywhere = min(measured, groups * counter.towers(policy, prompt) + casts)
    return everywhere + (measured - everywhere) // parts, again // parts


class Counter:
    """Counts in bytes what a rank keeps of the weights, and what forwards keep, by running them."""

    sharded = False
    """Whether forwards are those of a model that `fsdp2` shards."""

    def share(self, policy: Policy, shards: int) -> RankShare:
        """Return what a rank keeps of the weights."""
        return rank_share(policy, shards)

    def activations(
        self, config: Config, policy: Policy, prompt: Prompt, rows: int, whole: Completion
    ) -> tuple[int, int]:
        """Return what `measure_activations` does."""
        return measure_activations(config, policy, prompt, rows, whole, self)

    def saved(self, policy: Policy, micro: MicroBatch, sharing: Sharing) -> int:
        """Return what a micro-batch keeps."""
        with as_gathered(policy) if self.sharded else contextlib.nullcontext():
            return measure_saved_bytes(policy, micro, sharing)

    def towers(self, policy: Policy, prompt: Prompt) -> int:
        """Return what the towers keep of a prompt's media."""
        with record_storages(policy) as sizes:
            kept_alive = policy.family.tower_features(policy.base, [prompt.encoded])
        del kept_alive
        return sum(sizes.values())


def measure_saved_bytes(policy: Policy, micro: MicroBatch, sharing: Sharing) -> int:
    """Return the bytes that autograd keeps from forward to backward of a micro-batch, without weights.

    With `low_memory` they are those of one prompt and its first completion.
    """
    before, policy.sharing = policy.sharing, sharing
    try:
        with record_storages(policy) as sizes:
            if sharing.setting == "low_memory":
                kept_alive: Any = policy.one_by_one(policy.base, micro)
                next(kept_alive)
            else:
                kept_alive = policy.logprobs(micro)
        del kept_alive  # only now: a storage that is freed gives its address to the next
    finally:
        policy.sharing = before
    return sum(sizes.values())


def _casts(policy: Policy, head_alone: bool = False) -> int:
    """Return the bytes of autocast's bfloat16 copies of the weights that train, or of the head."""
    head: Any = policy.family.head(policy.base).weight
    trained = sum(map(size_of, [head] if head_alone else policy.trainable))
    return trained // 2 if policy.config.dtype == "bfloat16" else 0


@contextlib.contextmanager
def record_storages(policy: Policy) -> Iterator[dict[int, int]]:
    """Record the storages that autograd keeps inside this block: address -> bytes."""
    weights = {p.untyped_storage()._cdata for p in policy.base.parameters()}
    sizes: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:  # not where its numbers are: fake tensors have none
            sizes[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        yield sizes


def _full(prompt: Prompt, max_tokens: int) -> Completion:
    """Return a completion of one turn and full length, of any token."""
    words, nothing = (1,) * max_tokens, Parsed(None, None, "none", False, 0.0)
    return Completion("", nothing, prompt.frame, words, (0.0,) * max_tokens)


def _make_micro(prompt: Prompt, prompts: int, each: int, completion: Completion) -> MicroBatch:
    """Return `each` completions like this one for each of `prompts` equal prompts."""
    max_tokens = len(completion.token_ids)
    rollouts = Rollouts(PromptBatch((prompt,) * prompts), ((completion,) * each,) * prompts)
    return pack_all(rollouts, micro_tokens=2**62, max_tokens=max_tokens).micro[0]


# ------------------------------------------------------------------------------------- the rest


def _logits(policy: Policy, tokens: int) -> int:
    """Return the bytes of a chunk of logits, its softmax, its gradient, and the head's gradient."""
    head = policy.family.head(policy.base).weight
    vocabulary, width = head.shape  # type: ignore[misc]
    own = int(width) if head.requires_grad else 0
    return 4 * int(vocabulary) * (3 * min(CHUNK, tokens) + own)


def _cache_bytes(policy: Policy, tokens: int) -> int:
    """Return the bytes of the cache of one completion of `tokens` tokens, those of its prompt included."""
    text: Any = policy.base.config.get_text_config()
    size = 2 if policy.config.dtype == "bfloat16" else 4
    return token_bytes(text, size) * tokens + state_bytes(text, size)


def cached_completions(
    engine: VllmOptions, policy: Policy, prompts: Sequence[Prompt], max_tokens: int
) -> tuple[int, int]:
    """Return the bytes of a vLLM's share that are left for its cache, and the longest completions there.

    They are the completions of the longest of these prompts whose keys and values fit at a time.
    """
    share = sum(engine.memory(policy, _capacity(policy.device)))
    cache = share // getattr(engine, "num_servers", 1) - policy.weight_bytes()
    longest = max(len(prompt.encoded.ids) for prompt in prompts) + max_tokens
    return cache, max(0, cache) // _cache_bytes(policy, longest)


def _capacity(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return psutil.virtual_memory().total
