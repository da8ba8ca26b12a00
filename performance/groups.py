"""Groups of completions to measure with: a Qwen2.5-VL of random weights, prompts, updates, operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from vlmrl.config import BuildConfig, ModelConfig
from vlmrl.data.prompt import make_prompt
from vlmrl.forward.logprobs import Sharing
from vlmrl.forward.packing import rows_of
from vlmrl.models.loading import load_model
from vlmrl.policy.policy import Policy
from vlmrl.schema import Media, MicroBatch, Prompt, Sample, Truth

TEXT = {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2}
TEXT |= {"num_hidden_layers": 4, "intermediate_size": 1408}
VISION = {"depth": 4, "hidden_size": 192, "num_heads": 6, "intermediate_size": 576}
VISION |= {"fullatt_block_indexes": [3]}
VOCABULARY = 4096
CORPUS = ["user assistant ? ? ?"] * 9
WORDS = 16
CELL = 28
"""Pixels of a side of what becomes one token."""
BYTES = range(100)
"""Token ids of any tokenizer here, none of which stands for a medium."""


@dataclass(frozen=True)
class Case:
    """One group: a prompt of `prompt` tokens, `group` completions of `completion` tokens."""

    prompt: int
    completion: int
    group: int


def make_policy(
    text: Mapping[str, Any] = TEXT,
    vision: Mapping[str, Any] = VISION,
    vocabulary: int = VOCABULARY,
    family: str = "qwen2_5_vl",
    **model: Any,
) -> Policy:
    """Return a policy of this shape; `model` are further settings of the config's section."""
    build = BuildConfig(family=family, text=dict(text), vision=dict(vision))
    config = ModelConfig(build=build, **model)
    loaded = load_model(config, CORPUS)
    loaded.model.resize_token_embeddings(vocabulary, mean_resizing=False)
    return Policy(*loaded, config)


# --------------------------------------------------------------------------------- what is computed


def micro_batch(
    policy: Policy, case: Case, ids: Sequence[int] = BYTES, prompt: Prompt | None = None
) -> MicroBatch:
    """One group with random completions of these ids, to a prompt or to an image's."""
    generator = torch.Generator().manual_seed(0)
    shape = (case.group, case.completion)
    drawn = torch.tensor(ids)[torch.randint(len(ids), shape, generator=generator)]
    return MicroBatch(
        prompts=(prompt or image_prompt(policy, case.prompt),),
        group=torch.zeros(case.group, dtype=torch.long),
        token_ids=drawn,
        mask=torch.ones(shape, dtype=torch.bool),
        sampling_logprobs=torch.zeros(shape),
        advantages=torch.randn(case.group, 1, generator=generator),
        weights=torch.ones(case.group),
    )


def image_prompt(policy: Policy, tokens: int, size: tuple[int, int] | None = None) -> Prompt:
    """Return a prompt of `tokens` tokens; its image has `size` (rows, columns), or nearly fills it."""
    rows, columns = size or grid(tokens)
    pixels = np.random.default_rng(0).integers(0, 255, (CELL * rows, CELL * columns, 3), np.uint8)

    def with_words(count: int) -> Prompt:
        parts = (Media("image", data=b"-"), " ".join(["?"] * count))
        sample = Sample("0", "noise", parts, Truth())
        return make_prompt(sample, [Image.fromarray(pixels)], policy.family, policy.processor)

    made = (with_words(count) for count in range(1, tokens))
    return next(prompt for prompt in made if len(prompt.encoded.ids) == tokens)


def grid(tokens: int) -> tuple[int, int]:
    """Rows and columns of the image's tokens; the rest is the chat template and words."""
    columns = int((tokens - WORDS) ** 0.5)
    return (tokens - WORDS) // columns, columns


# --------------------------------------------------------------------------------------- the updates


def update(policy: Policy, micro: MicroBatch, sharing: Sharing) -> None:
    """Forward, loss and backward."""
    policy.sharing = sharing
    forget_gradients(policy)
    logprobs, _ = policy.logprobs(micro)
    (logprobs * micro.advantages.to(logprobs.device)).sum().backward()


def update_in_parts(policy: Policy, micro: MicroBatch, rows: int) -> None:
    """The plain forward with micro-batches of `rows` completions."""
    policy.sharing = Sharing("off", 1.3, possible=True)
    forget_gradients(policy)
    for part in torch.arange(len(micro.group)).split(rows):
        own = rows_of(micro, part)
        logprobs, _ = policy.logprobs(own)
        (logprobs * own.advantages.to(logprobs.device)).sum().backward()


def low_memory_update(policy: Policy, micro: MicroBatch) -> None:
    """The prompt once, then its completions one at a time."""
    forget_gradients(policy)
    for _, part, logprobs, _ in policy.one_by_one(policy.base, micro):
        (logprobs * part.advantages.to(logprobs.device)).sum().backward()


def forget_gradients(policy: Policy) -> None:
    for parameter in policy.trainable:
        parameter.grad = None


# ------------------------------------------------------------------------------------ the operations


@dataclass(frozen=True)
class Flops:
    """Floating-point operations of the forward of a group, by part; the backward has twice as many."""

    tower: float
    """The vision tower, once."""
    plain: float
    """The language model with the prompt once for each completion."""
    shared: float
    """The language model with the prompt once."""
    head: float


def flops(policy: Policy, case: Case) -> Flops:
    """Count what a group must compute.

    A weight matrix costs 2 operations per number and token, attention 4 * width per visible pair. What
    a gated delta-net does with its state, linear in the tokens, is not counted.
    """
    model, text = policy.base.model, policy.base.config.get_text_config()
    vision = policy.base.config.vision_config
    p, c, g = case.prompt, case.completion, case.group
    (image,) = image_prompt(policy, p).encoded.tensors["image_grid_thw"]
    patches = int(image.prod())
    full = len(getattr(vision, "fullatt_block_indexes", range(vision.depth)))
    pairs = patches * (patches * full + 64 * (vision.depth - full))
    visual = model.visual
    tower = 2 * patches * (numbers(visual.patch_embed) + numbers(visual.blocks))
    tower += 2 * patches / 4 * numbers(visual.merger)
    tower += 4 * vision.hidden_size * pairs
    layers = numbers(model.language_model.layers)
    kinds = getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers
    attending = kinds.count("full_attention")

    def decoder(tokens: int, visible: float) -> float:
        return 2 * layers * tokens + 4 * text.hidden_size * attending * visible

    return Flops(
        tower,
        plain=decoder(g * (p + c), g * (p + c) ** 2 / 2),
        shared=decoder(p + g * (c - 1), p * p / 2 + g * c * p + g * c * c / 2),
        head=2 * g * c * numbers(policy.family.head(policy.base)),
    )


def predicted(policy: Policy, case: Case, shared: bool) -> dict[str, float]:
    """Operations of forward and backward by way; the head's backward computes the logits again."""
    own, g = flops(policy, case), case.group
    head, tower = 4 * own.head, 3 * own.tower
    return {
        "trainers": 3 * own.plain + head + g * tower,
        "plain": 3 * own.plain + head + tower,
        "ours": 3 * (own.shared if shared else own.plain) + head + tower,
    }


def numbers(module: torch.nn.Module) -> int:
    """How many numbers its weight matrices hold."""
    return sum(p.numel() for p in module.parameters() if p.ndim > 1)
