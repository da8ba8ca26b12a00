"""What a model and a step come to in numbers: weights, operations of a token, tokens of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vlmrl.algorithms.base import Algorithm, passes_of
from vlmrl.config import Config
from vlmrl.monitoring.rank_share import rank_share
from vlmrl.planning.published import Assumptions
from vlmrl.policy import weights
from vlmrl.policy.policy import Policy
from vlmrl.policy.trainable import FUSED_EXPERTS, tower_of
from vlmrl.schema import Prompt

__all__ = ["ModelCounts", "StepCounts", "count_model", "count_step"]


@dataclass(frozen=True, slots=True)
class ModelCounts:
    """Numbers of a model. An operation is a multiplication or an addition."""

    parameters: int
    trained: int
    gathered_bytes: int
    """What `fsdp2` gathers in one forward, over all layers."""
    active: int
    """Weights of the language tower's layers that a token passes: of experts those that it is routed to."""
    head: int
    """Weights of the output projection."""
    vision: int
    """Weights of the towers of media, with their projectors."""
    language_trains: bool
    vision_trains: bool
    attention: int
    """Operations of a token per token that it attends to, in all layers."""
    num_layers: int
    kv_heads: int
    kv_bytes: int
    """Keys and values of a token in bfloat16."""
    sync_bytes: int
    """What a sync with full weights sends in bfloat16, each tied weight once."""


@dataclass(frozen=True, slots=True)
class StepCounts:
    """Numbers of a step, over all ranks."""

    prompts: int
    completions: int
    prompt_tokens: int
    """Of one prompt."""
    media_patches: int
    """Patches of one prompt's media that the vision tower computes."""
    mean_length: float
    """Of a completion, in tokens."""
    max_length: int
    update_tokens: float
    """Tokens that an update's forwards compute in the language model: shared prompts once."""
    plain_tokens: float
    """The same with a prompt for each completion; what `optimizer.micro_batch_tokens` counts."""
    scored_tokens: float
    forwards: int
    """Passes before the update: old log-probs, reference, ..."""
    epochs: int
    minibatches: int
    """Updates of an epoch."""


def count_model(policy: Policy) -> ModelCounts:
    """Count a policy, which may be a sketch."""
    family, base = policy.family, policy.base
    text: Any = base.config.get_text_config()
    named = dict(base.named_parameters())
    language = {n: p for n, p in named.items() if tower_of(n, family) == "language"}
    head: Any = family.head(base).weight
    prefix = f"{family.decoder_layers[0]}."
    layers = {n: p for n, p in language.items() if n.startswith(prefix)}
    routed = getattr(text, "num_experts_per_tok", 0) / (getattr(text, "num_experts", 0) or 1)
    active = sum(
        p.numel() * (routed if n.endswith(FUSED_EXPERTS) else 1) for n, p in layers.items()
    )
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    vision = {n: p for n, p in named.items() if n not in language}
    return ModelCounts(
        parameters=sum(p.numel() for p in named.values()),
        trained=sum(p.numel() for p in policy.trainable),
        gathered_bytes=rank_share(policy, shards=2).whole,
        active=round(active),
        head=head.numel(),
        vision=sum(p.numel() for p in vision.values()),
        language_trains=any(p.requires_grad for p in layers.values()),
        vision_trains=any(
            p.requires_grad for n, p in vision.items() if tower_of(n, family) != "projector"
        ),
        attention=4 * text.num_hidden_layers * text.num_attention_heads * width,
        num_layers=text.num_hidden_layers,
        kv_heads=text.num_key_value_heads,
        kv_bytes=4 * text.num_hidden_layers * text.num_key_value_heads * width,
        sync_bytes=count_sync_bytes(policy, 2),
    )


def count_sync_bytes(policy: Policy, size: int) -> int:
    """Return the bytes of all weights that an engine is sent at `size` bytes a number, tied ones once."""
    merged = weights.without_adapters(weights.units_of(policy.base, policy.family))
    return sum(size * weight.numel() for unit in merged for weight in unit.values())


def count_step(
    config: Config, policy: Policy, algorithm: Algorithm, prompt: Prompt, assumed: Assumptions
) -> StepCounts:
    """Count a step of a config with prompts like this one."""
    rollout, optimizer = config.rollout, config.optimizer
    completions = rollout.prompts * rollout.group_size
    mean = assumed.length_share * rollout.max_tokens
    tokens = len(prompt.encoded.ids)
    plain = completions * (tokens + mean)
    shared = rollout.prompts * tokens + completions * mean
    pays = policy.sharing.possible and (
        optimizer.shared_forward == "on"
        or (optimizer.shared_forward == "auto" and plain / shared >= optimizer.shared_threshold)
    )
    passes = passes_of(algorithm, optimizer.minibatches * optimizer.epochs > 1)
    patches = sum(len(t) for n, t in prompt.encoded.tensors.items() if n.startswith("pixel_values"))
    return StepCounts(
        prompts=rollout.prompts,
        completions=completions,
        prompt_tokens=tokens,
        media_patches=patches,
        mean_length=mean,
        max_length=rollout.max_tokens,
        update_tokens=shared if pays else plain,
        plain_tokens=plain,
        scored_tokens=completions * mean,
        forwards=len({"old" if name == "entropy" else name for name in passes - {"teacher"}}),
        epochs=optimizer.epochs,
        minibatches=optimizer.minibatches,
    )
