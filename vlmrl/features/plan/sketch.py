"""A policy whose weights have sizes and no numbers, and what is counted on it.

It is the run's own policy of the run's own parts, so that what is counted on it is what is counted on a
real one; only its tensors are torch's fake ones, whose forward tells what it would keep and computes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from vlmrl import plugins
from vlmrl.algorithms.base import Algorithm, passes_of
from vlmrl.config import Config, ModelConfig
from vlmrl.data.prompt import make_prompt
from vlmrl.errors import UserError
from vlmrl.features.plan.published import Assumptions, architecture_of
from vlmrl.forward.logprobs import Sharing
from vlmrl.models.loading import Loaded, load_model, set_pixel_budget
from vlmrl.monitoring.memory_forecast import Counter, RankShare, rank_share
from vlmrl.parts.families.qwen_like import MropeFamily
from vlmrl.parts.families.small.qwen_models import build_published
from vlmrl.policy import weights
from vlmrl.policy.policy import Policy
from vlmrl.policy.trainable import FUSED_EXPERTS, tower_of
from vlmrl.schema import Completion, Media, MicroBatch, Prompt, Sample, Truth
from vlmrl.schema.media import Decoded

CORPUS = ("word " * 64,)
"""What the small tokenizer is trained on."""
GROUPED = "grouped_mm"
"""The way to compute experts whose shapes do not depend on where tokens are routed."""


def sketch(
    config: ModelConfig, corpus: Sequence[str] = CORPUS, layers: int | None = None
) -> Policy:
    """Return the policy of a config without the numbers of its weights; its tokenizer knows the corpus.

    With `layers`, a published model has only this number in its language tower.

    Raises:
        UserError: the architecture is unknown here, or its weights are quantized.
    """
    if config.quantization:
        raise UserError(
            "model.quantization: bitsandbytes needs real weights; plan without it, or run vlmrl doctor"
        )
    device = "cuda" if torch.cuda.is_available() else "cpu"  # where a policy is
    with FakeTensorMode(allow_non_fake_inputs=True), torch.device(device):
        loaded = (
            load_model(config, corpus) if config.build else _load_published(config, corpus, layers)
        )
        if getattr(loaded.model.config.get_text_config(), "num_experts", 0):
            loaded.model.set_experts_implementation(GROUPED)
    for module in loaded.model.modules():
        if hasattr(module, "_deepstack_process"):
            module._deepstack_process = _put_by_index
    policy = Policy(*loaded, config)  # adapters have numbers: peft moves them
    if policy.frozen_towers is not None:
        policy.frozen_towers.checked = True  # there are no numbers to compare
    return policy


def _put_by_index(hidden: Tensor, places: Tensor, features: Tensor) -> Tensor:
    """Do what Qwen3-VL's own does by a mask, whose count of places a fake tensor does not know."""
    index = places.nonzero(as_tuple=True)
    hidden = hidden.clone()
    hidden[index] = hidden[index].clone() + features
    return hidden


def _load_published(config: ModelConfig, corpus: Sequence[str], layers: int | None) -> Loaded:
    assert config.path is not None  # the config allows exactly one of the two
    published = architecture_of(config.path)
    family = plugins.build("family", published.family)
    assert isinstance(family, MropeFamily)
    text = {**published.text, **({} if layers is None else {"num_hidden_layers": layers})}
    model, processor = build_published(family.small, text, published.vision, published.tied, corpus)
    if config.attention:
        model.set_attn_implementation(config.attention)
    set_pixel_budget(processor, config)
    family.adopt(processor, model.config)
    return Loaded(model, processor, family)


def sketch_prompt(policy: Policy, images: int, pixels: int, text_tokens: int) -> Prompt:
    """Return a prompt of square images of `pixels` pixels each, and about `text_tokens` of text."""
    side = round(pixels**0.5)
    media: list[Decoded] = [Image.new("RGB", (side, side)) for _ in range(images)]
    bare = _prompt(policy, media, "")
    beside = text_tokens - len(policy.tokenizer(bare.text)["input_ids"])
    return _prompt(policy, media, " word" * max(0, beside))


def _prompt(policy: Policy, media: list[Decoded], text: str) -> Prompt:
    parts: tuple[str | Media, ...] = (*(Media("image", data=b"-") for _ in media), text)
    sample = Sample("planned", "planned", parts, Truth())
    return make_prompt(sample, media, policy.family, policy.processor)


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


FEW = (3, 4)
"""Layers of the language towers that are run; features of DeepStack go to the first three."""


class ShallowCounter(Counter):
    """Counts each shape of a published model's forward once.

    Each layer of the language tower keeps as much as any other: what two models of few layers keep says
    what one of many does.
    """

    def __init__(self, config: ModelConfig, layers: int) -> None:
        self._config, self._layers = config, layers
        self._policies: dict[int, Policy] = {}
        self._found: dict[Any, int] = {}
        self._activations: dict[Any, tuple[int, int]] = {}
        self._shares: dict[int, RankShare] = {}
        self._kept = contextlib.ExitStack()

    def share(self, policy: Policy, shards: int) -> RankShare:
        """See `Counter`."""
        if shards not in self._shares:
            self._shares[shards] = super().share(policy, shards)
        return self._shares[shards]

    def activations(
        self, config: Config, policy: Policy, prompt: Prompt, rows: int, whole: Completion
    ) -> tuple[int, int]:
        """See `Counter`; prompt and completion are the same at every call."""
        parts, again = config.distributed.sequence_parallel, policy.config.gradient_checkpointing
        key = (rows, parts, again, self.sharded)
        if key not in self._activations:
            self._activations[key] = super().activations(config, policy, prompt, rows, whole)
        return self._activations[key]

    def saved(self, policy: Policy, micro: MicroBatch, sharing: Sharing) -> int:
        """See `Counter`."""
        again = policy.base.is_gradient_checkpointing
        key = (len(micro.prompts), len(micro.group), sharing.setting, again, self.sharded)
        if key not in self._found:
            if self._config.path is None or self._layers <= FEW[1]:
                self._found[key] = super().saved(policy, micro, sharing)
            else:
                less, more = (self._count(n, micro, sharing, again) for n in FEW)
                each = (more - less) // (FEW[1] - FEW[0])
                self._found[key] = more + (self._layers - FEW[1]) * each
        return self._found[key]

    def towers(self, policy: Policy, prompt: Prompt) -> int:
        """See `Counter`."""
        if "towers" not in self._found:
            shallow = policy if self._config.path is None else self._policy(FEW[0])
            self._found["towers"] = super().towers(shallow, prompt)
        return self._found["towers"]

    def _policy(self, layers: int) -> Policy:
        if layers not in self._policies:
            config = self._config.model_copy(update={"gradient_checkpointing": False})
            policy = self._policies[layers] = sketch(config, layers=layers)
            self._kept.enter_context(policy.seeing_once())  # frozen towers see an image once
        return self._policies[layers]

    def _count(self, layers: int, micro: MicroBatch, sharing: Sharing, again: bool) -> int:
        policy = self._policy(layers)
        if again and not policy.base.is_gradient_checkpointing:
            policy.base.gradient_checkpointing_enable({"use_reentrant": False})
            policy.base.enable_input_require_grads()
        elif not again and policy.base.is_gradient_checkpointing:
            policy.base.gradient_checkpointing_disable()
        return super().saved(policy, micro, sharing)
