"""Small real models, prompts and batches that many tests share."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image

from vlmrl.config import BuildConfig, LoraConfig, ModelConfig, OptimizerConfig
from vlmrl.data.prompt import make_prompt
from vlmrl.models.loading import Loaded, load_model
from vlmrl.policy.optimizers import adamw
from vlmrl.policy.policy import Policy
from vlmrl.schema import (
    Advantages,
    Box,
    Media,
    MediaKind,
    Prompt,
    PromptBatch,
    Rollouts,
    Sample,
    Truth,
)
from vlmrl.schema.media import Audio, Decoded

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
DEMO = '<think>top left</think><answer>{"bbox_2d": [7, 14, 35, 49]}</answer>'
CORPUS = ["Where is the red shape?", "How many green circles?", DEMO] * 3
TEXT = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
TEXT |= {"num_hidden_layers": 2, "intermediate_size": 96}


def model_config(family: str = "qwen2_5_vl", **fields: object) -> ModelConfig:
    return ModelConfig(build=BuildConfig(family=family, text=TEXT, vocab_size=320), **fields)


@functools.cache
def loaded(family: str) -> Loaded:
    return load_model(model_config(family), CORPUS, seed=0)


def policy(family: str = "qwen2_5_vl", lora: LoraConfig | None = None, **fields: object) -> Policy:
    """A fresh policy with its optimizer; the same weights every time."""
    return policy_by(model_config(family, lora=lora, **fields))


def policy_by(config: ModelConfig) -> Policy:
    """The same by the section `model` of a config."""
    made = Policy(*load_model(config, CORPUS, seed=0), config)
    made.use_optimizer(adamw(made.trainable, lr=1e-2), OptimizerConfig(lr=1e-2, max_grad_norm=1e9))
    return made


def prompt(model: Loaded | Policy, number: int = 0, images: int = 1, text: str = "") -> Prompt:
    """A prompt with noise images of sizes that depend on its number; of recordings, where the
    family takes no images."""
    rng = np.random.default_rng(number)
    kind: MediaKind = "image" if "image" in model.family.kinds else "audio"
    media: list[Decoded] = []
    for i in range(images):
        if kind == "image":
            shape = (56 + 28 * (number % 2), 56 + 28 * ((number + i) % 3), 3)
            media.append(Image.fromarray(rng.integers(0, 255, shape, np.uint8)))
        else:
            media.append(audio(0.3 + 0.2 * ((number + i) % 3), number + i))
    question = text or "Where is the red shape?" + " red" * (number % 3)
    parts = (*(Media(kind, data=b"-") for _ in media), question)
    sample = Sample(str(number), "noise", parts, Truth(boxes=(Box(0.1, 0.1, 0.5, 0.5),)))
    return make_prompt(sample, media, model.family, model.processor)


def audio(seconds: float, seed: int = 0) -> Audio:
    """Noise."""
    samples = np.random.default_rng(seed).normal(0, 0.1, round(16000 * seconds))
    return Audio(samples.astype(np.float32), 16000)


def mixed_batch(model: Loaded | Policy) -> PromptBatch:
    """Single-image, two-image and text-only prompts of different lengths."""
    counts = (1, 2, 0, 1)
    return PromptBatch(tuple(prompt(model, i, images=n) for i, n in enumerate(counts)))


def advantages(rollouts: Rollouts, values: Sequence[Sequence[float]] | None = None) -> Advantages:
    """Given or random advantages; everything kept."""
    shape = rollouts.shape
    made = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    given = torch.tensor(values) if values is not None else made
    return Advantages(given, torch.ones(shape, dtype=torch.bool), torch.ones(shape))


def blind(policy):
    """The policy with a projector that makes the same of every image."""
    with torch.no_grad():
        for name, weight in policy.base.named_parameters():
            if name.startswith(policy.family.towers["projector"]):
                weight.zero_()
    return policy
