"""How much memory a training step will need on its device, before the run that would find out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import torch

from vlmrl.batching import num_tokens, pack
from vlmrl.config import Config
from vlmrl.engines._options import VllmOptions, weight_bytes
from vlmrl.engines.base import Engine
from vlmrl.forward import CHUNK, completion_logprobs
from vlmrl.policy import Policy
from vlmrl.schema import Advantages, Completion, MicroBatch, Parsed, Prompt, PromptBatch, Rollouts

GIB = 2**30
ROWS = 2
"""Completions per prompt of the micro-batches that are measured."""
TIGHT = 0.85
"""Share of the device above which fragmentation and the like may not fit any more."""

LOWER = {
    "weights": "model.dtype=bfloat16 with model.lora or model.freeze, or a smaller model",
    "reference": "algorithm.options.kl=0, or model.lora (the base model is then the reference)",
    "gradients": "model.lora or model.freeze",
    "optimizer": "model.lora or model.freeze",
    "activations": "optimizer.micro_tokens, model.gradient_checkpointing=true, model.max_pixels",
    "logits": "optimizer.micro_tokens",
    "engine": "engine.options.gpu_memory_utilization or sleep=true, or vllm_server on another device",
    "kv cache": "engine.options.max_rows, rollout.max_tokens, rollout.prompts",
}
"""What lowers each part, most effective first."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Bytes by part; `phase` names those that exist only while generating or while updating."""

    parts: dict[str, int]
    capacity: int
    """Bytes of the device."""

    @property
    def peak(self) -> int:
        """All that stays, and the larger of what generation and what the update adds."""
        generating = self.parts["kv cache"]
        updating = self.parts["activations"] + self.parts["logits"]
        return sum(self.parts.values()) - min(generating, updating)

    @property
    def share(self) -> float:
        """The peak as a share of the device."""
        return self.peak / self.capacity

    def advice(self) -> str:
        """What to lower, beginning with the largest part."""
        largest = sorted(self.parts, key=lambda part: -self.parts[part])[:2]
        return "; ".join(f"{part}: lower with {LOWER[part]}" for part in largest)

    def __str__(self) -> str:
        """The parts and their peak in GiB."""
        parts = ", ".join(f"{name} {size / GIB:.2f}" for name, size in self.parts.items() if size)
        return f"{self.peak / GIB:.2f} of {self.capacity / GIB:.1f} GiB ({parts})"


def forecast(
    config: Config, policy: Policy, engine: Engine, prompts: Sequence[Prompt], kl: bool
) -> Forecast:
    """The peak of a step with prompts like these, on the policy's device.

    Activations are measured on two small micro-batches and drawn out to the largest that the config
    allows, by the plain forward: the shared forward needs less. With gradient checkpointing one
    layer's recomputation is not counted. `kl`: the algorithm keeps a reference.
    """
    weights = sum(_bytes(p) for p in policy.base.parameters())
    trained = sum(_bytes(p) for p in policy.trainable)
    longest = max(len(prompt.encoded.ids) for prompt in prompts) + config.rollout.max_tokens
    completions = config.rollout.prompts * config.rollout.group_size
    rows = max(1, min(config.optimizer.micro_tokens // longest, completions))
    capacity = _capacity(policy.device)
    stays, generating = _engine(engine, policy, completions * longest, longest, capacity)
    parts = {
        "weights": weights,
        "reference": weights if kl and policy.adapter is None else 0,
        "gradients": trained,
        "optimizer": 2 * trained,  # AdamW: two moments
        "engine": stays,
        "activations": activations(policy, prompts, rows * longest, config.rollout.max_tokens),
        "logits": _logits(policy, rows * config.rollout.max_tokens),
        "kv cache": generating,
    }
    return Forecast(parts, capacity)


def activations(policy: Policy, prompts: Sequence[Prompt], tokens: int, max_tokens: int) -> int:
    """Bytes that autograd keeps for a micro-batch of so many tokens, prompts and padding included."""
    small, large = (_micro(p, max_tokens) for p in (prompts[:1], prompts[:3]))
    low, high = kept(policy, small), kept(policy, large)
    at, further = num_tokens(small), num_tokens(large)
    if further == at:  # a single prompt: nothing to draw a line through
        return low * tokens // at
    slope = max(0.0, (high - low) / (further - at))
    return round(max(0.0, low - slope * at) + slope * tokens)


def kept(policy: Policy, micro: MicroBatch) -> int:
    """Bytes that autograd keeps between forward and backward of a micro-batch, weights left out."""
    storages = {p.untyped_storage().data_ptr() for p in policy.base.parameters()}
    sizes: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in storages:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        logprobs, _ = completion_logprobs(
            policy.base, policy.family, micro, policy.temperature, policy.pad_id
        )
    del logprobs  # only now: a storage that is freed gives its address to the next
    return sum(sizes.values())


def _micro(prompts: Sequence[Prompt], max_tokens: int) -> MicroBatch:
    """Completions of the full length, of any token, in one micro-batch."""
    words = (1,) * max_tokens
    one = Completion(
        "", Parsed(None, None, "none", False, 0.0), prompts[0].frame, words, (0.0,) * max_tokens
    )
    rollouts = Rollouts(PromptBatch(tuple(prompts)), ((one,) * ROWS,) * len(prompts))
    shape = rollouts.shape
    kept = torch.ones(shape, dtype=torch.bool)
    everything = Advantages(torch.ones(shape), kept, torch.ones(shape))
    (batch,) = pack(rollouts, everything, updates=1, micro_tokens=2**62, max_tokens=max_tokens)
    return batch.micro[0]


def _logits(policy: Policy, tokens: int) -> int:
    """A chunk of logits, their softmax and its gradient, and the gradient of the head."""
    vocabulary, width = policy.family.head(policy.base).weight.shape  # type: ignore[misc]
    return 4 * int(vocabulary) * (3 * min(CHUNK, tokens) + int(width))


def _kv_token(policy: Policy) -> int:
    """Bytes of the keys and values of one token in all layers."""
    text: Any = policy.base.config.get_text_config()
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    size = 2 if policy.config.dtype == "bfloat16" else 4
    return 2 * text.num_hidden_layers * text.num_key_value_heads * width * size


def _engine(
    engine: Engine, policy: Policy, tokens: int, longest: int, capacity: int
) -> tuple[int, int]:
    """Bytes that the engine keeps, and those that it needs only while it generates `tokens`."""
    if isinstance(engine, VllmOptions):
        return engine.memory(policy, capacity)
    most = getattr(engine, "max_rows", None)
    cached = _kv_token(policy) * (tokens if most is None else min(tokens, most * longest))
    return 0 if engine.exact else weight_bytes(policy), cached


def _capacity(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return psutil.virtual_memory().total


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
