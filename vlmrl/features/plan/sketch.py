"""A policy whose weights have sizes and no numbers, and what is counted on it.

It is the run's own policy of the run's own parts, so that what is counted on it is what is counted on a
real one; only its tensors are torch's fake ones, whose forward tells what it would keep and computes nothing.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers.initialization import no_init_weights

from vlmrl import plugins
from vlmrl.algorithms.base import Algorithm, passes_of
from vlmrl.config import Config, ModelConfig
from vlmrl.data.prompt import make_prompt
from vlmrl.errors import UserError
from vlmrl.features.plan.layouts import PARALLEL
from vlmrl.features.plan.published import Assumptions, architecture_of
from vlmrl.forward.logprobs import Sharing
from vlmrl.forward.sequence_parallel import find_obstacle
from vlmrl.models.cache_sizes import attending_layers, head_width, state_bytes, token_bytes
from vlmrl.models.loading import Loaded, load_model, set_pixel_budget
from vlmrl.monitoring.memory_forecast import Counter, RankShare, rank_share
from vlmrl.policy import weights
from vlmrl.policy.policy import Policy
from vlmrl.policy.trainable import FUSED_EXPERTS, tower_of
from vlmrl.schema import Completion, Media, MicroBatch, Prompt, Sample, Truth
from vlmrl.schema.media import Audio, Decoded, kind_of

CORPUS = ("word " * 64,)
"""What the small tokenizer is trained on."""
CHUNK = 64
"""Tokens that a gated delta-net reads at once."""
GROUPED = "grouped_mm"
"""The way to compute experts whose shapes do not depend on where tokens are routed."""


def sketch(
    config: ModelConfig, corpus: Sequence[str] = CORPUS, layers: Mapping[str, int] | None = None
) -> Policy:
    """Return the policy of a config without the numbers of its weights; its tokenizer knows the corpus.

    With `layers`, a published model has only as many in each of these parts (`text`, `vision`, `audio`).

    Raises:
        UserError: the architecture is unknown, its weights are quantized, or its experts not in bfloat16.
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
    named = (name for name, _ in loaded.model.named_parameters())
    if config.dtype != "bfloat16" and any(name.endswith(FUSED_EXPERTS) for name in named):
        raise UserError(f"model.dtype: experts are planned in bfloat16 alone, got {config.dtype}")
    for module in loaded.model.modules():
        if hasattr(module, "_deepstack_process"):
            module._deepstack_process = _put_by_index
        if hasattr(module, "fullatt_block_indexes"):
            # Windows keep as many numbers as attention to all does, and take a call each.
            module.fullatt_block_indexes = [*range(len(module.blocks))]
        if type(module).__name__ == "Gemma4VisionPooler":
            module.register_forward_hook(_kept_by_index)
        if type(module).__name__.endswith("GatedDeltaNet"):
            module.forward = functools.partial(_run_chunks_at_once, module, module.forward)
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


def _kept_by_index(_: object, __: object, pooled: tuple[Tensor, Tensor]) -> tuple[Tensor, Any]:
    """Return an index in place of a mask, for the same reason."""
    hidden, kept = pooled
    return hidden, kept.nonzero(as_tuple=True)


RULE = "torch_chunk_gated_delta_rule"
"""transformers' function of a gated delta-net that reads rows in chunks, one after the other."""


def _run_chunks_at_once(
    layer: object, forward: Callable[..., Tensor], *args: Any, **settings: Any
) -> Tensor:
    """Run a gated delta-net's forward with `chunks_at_once` in place of transformers' loop."""
    modeling = sys.modules[type(layer).__module__]
    rule = getattr(modeling, RULE)
    setattr(modeling, RULE, functools.partial(chunks_at_once, rule))
    try:
        return forward(*args, **settings)
    finally:
        setattr(modeling, RULE, rule)


def chunks_at_once(
    rule: Callable[..., Any], *rows: Tensor, initial_state: Tensor | None = None, **settings: Any
) -> tuple[Tensor, Tensor | None]:
    """Return what the rule does for `rows` [n, T, ...], as shapes: each chunk is a row that begins alone.

    It keeps as many numbers as a loop over the chunks, and takes one call for all of them. Chunks are of
    equal length, so that the rule fills them up as it does rows that end within a chunk.
    """
    g, beta = settings.pop("g"), settings.pop("beta")
    count, tokens = rows[0].shape[:2]
    chunks = -(-tokens // CHUNK)
    size = -(-tokens // chunks)
    lone = [
        F.pad(row, (*(0, 0) * (row.ndim - 2), 0, chunks * size - tokens)).reshape(
            count * chunks, size, *row.shape[2:]
        )
        for row in (*rows, g, beta)
    ]
    if initial_state is not None:
        initial_state = initial_state.repeat_interleave(chunks, 0)
    elif chunks > 1:  # all but the first begin at states that gradient flows through
        sizes = (count * chunks, rows[2].shape[2], rows[1].shape[3], rows[2].shape[3])
        initial_state = torch.zeros(sizes, requires_grad=torch.is_grad_enabled())
    out, state = rule(*lone[:3], g=lone[3], beta=lone[4], initial_state=initial_state, **settings)
    whole = out.reshape(count, chunks * size, *out.shape[2:])[:, :tokens]
    return whole, None if state is None else state[::chunks].clone()


def _load_published(
    config: ModelConfig, corpus: Sequence[str], layers: Mapping[str, int] | None
) -> Loaded:
    assert config.path is not None  # the config allows exactly one of the two
    published = architecture_of(config.path)
    family: Any = plugins.build("family", published.family)
    if published.small:
        small = replace(family.small, **published.small)
        family = type(type(family).__name__, (type(family),), {"small": small})()
    with no_init_weights():
        model, processor = family.build(published.build(layers), corpus, 0)
    model.tie_weights()
    if config.attention:
        model.set_attn_implementation(config.attention)
    set_pixel_budget(processor, config)
    family.adopt(processor, model.config)
    return Loaded(model, processor, family)


SECONDS = 30
"""Length of a recording in a prompt of a model that only hears."""


def sketch_prompt(policy: Policy, images: int, pixels: int, text_tokens: int) -> Prompt:
    """Return a prompt of square images of `pixels` pixels each, and about `text_tokens` of text.

    A model that sees none hears as many recordings instead.
    """
    side = round(pixels**0.5)
    media: list[Decoded] = [Image.new("RGB", (side, side)) for _ in range(images)]
    if "image" not in policy.family.kinds:
        rate = policy.processor.feature_extractor.sampling_rate
        heard = min(SECONDS * rate, policy.processor.feature_extractor.n_samples)
        media = [Audio(np.zeros(heard, np.float32), rate) for _ in range(images)]
    bare = _prompt(policy, media, "")
    beside = text_tokens - len(policy.tokenizer(bare.text)["input_ids"])
    return _prompt(policy, media, " word" * max(0, beside))


def _prompt(policy: Policy, media: list[Decoded], text: str) -> Prompt:
    parts: tuple[str | Media, ...] = (*(Media(kind_of(m), data=b"-") for m in media), text)
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
    sequence_parts: tuple[int, ...]
    """How many ranks can share the tokens of a row, of `PARALLEL`."""
    kv_bytes: int
    """Keys and values of a token in bfloat16."""
    state_bytes: int
    """States of a completion in its gated delta-nets."""
    sync_bytes: int
    """What a sync with full weights sends in bfloat16, each tied weight once."""
    unserved: str = ""
    """Why vLLM cannot serve the model; empty when it can."""


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
        attention=4 * attending_layers(text) * text.num_attention_heads * head_width(text),
        num_layers=text.num_hidden_layers,
        sequence_parts=tuple(
            parts
            for parts in PARALLEL
            if parts == 1 or find_obstacle(base, policy.sharing.possible, parts) is None
        ),
        kv_bytes=token_bytes(text, 2),
        state_bytes=state_bytes(text, 2),
        sync_bytes=count_sync_bytes(policy, 2),
        unserved=family.unserved,
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


class ShallowCounter(Counter):
    """Counts each shape of a published model's forward once.

    Each layer of a part keeps as much as any other of its kind: what a model of few layers keeps, and what
    each of its parts keeps with one more, or with one more of each kind, say what a model of many does.
    """

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        published = architecture_of(config.path) if config.path else None
        self._depths = published.depths if published else {}
        self._few = published.shortest if published else 0
        self._text_period = published.period if published else 1
        self._policies: dict[str, Policy] = {}
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
        again = policy.checkpoints_layers
        seen = (len(micro.prompts), again, self.sharded)

        def count(shallow: Policy) -> int:
            self._checkpoint(shallow, again)
            return Counter.saved(self, shallow, micro, sharing)

        return self._add_up(policy, count, (len(micro.group), sharing.setting), seen)

    def towers(self, policy: Policy, prompt: Prompt) -> int:
        """See `Counter`."""
        return self._add_up(policy, lambda p: Counter.towers(self, p, prompt), "towers", "towers")

    def _add_up(
        self, policy: Policy, count: Callable[[Policy], int], shape: object, seen: object
    ) -> int:
        """Return the count of a policy, for this shape of text after media of the shape `seen`.

        What a layer of a media tower keeps does not depend on the text.
        """
        if not self._depths:
            return self._remember(("", shape, seen), lambda: count(policy))
        least = self._remember(("", shape, seen), lambda: count(self._policy("")))
        total = least
        for part, depth in self._depths.items():
            if depth > self._few:
                key = (part, shape, seen) if part == "text" else (part, seen)
                more = self._remember(key, functools.partial(self._deepened, count, part, least))
                total += (depth - self._few) * more // self._period(part)
        return total

    def _deepened(self, count: Callable[[Policy], int], part: str, least: int) -> int:
        return count(self._policy(part)) - least

    def _remember(self, key: object, count: Callable[[], int]) -> int:
        if key not in self._found:
            self._found[key] = count()
        return self._found[key]

    def _period(self, part: str) -> int:
        """Return after how many layers those of a part are of the same kinds again."""
        return self._text_period if part == "text" else 1

    def _policy(self, longer: str) -> Policy:
        """Return a policy of few layers, one part of it with as many more as have all kinds."""
        if longer not in self._policies:
            layers = {
                part: min(depth, self._few + (self._period(part) if part == longer else 0))
                for part, depth in self._depths.items()
            }
            config = self._config.model_copy(update={"gradient_checkpointing": False})
            policy = self._policies[longer] = sketch(config, layers=layers)
            self._kept.enter_context(policy.seeing_once())  # frozen towers see an image once
        return self._policies[longer]

    def _checkpoint(self, policy: Policy, again: bool) -> None:
        if again and not policy.checkpoints_layers:
            policy.checkpoint_layers()
            policy.base.enable_input_require_grads()
        elif not again and policy.checkpoints_layers:
            policy.checkpoint_layers(False)
