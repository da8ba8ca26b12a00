"""Log-probs and gradients of the newer families in bfloat16 against float32, on small random models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from groups import CORPUS, Case, micro_batch
from PIL import Image

from gpu_day.day import Day
from gpu_day.device import DEVICE, release
from gpu_day.parity import compare
from gpu_day.report import Row
from vlmrl.config import BuildConfig, ModelConfig
from vlmrl.data.prompt import make_prompt
from vlmrl.models.loading import load_model
from vlmrl.policy.policy import Policy
from vlmrl.schema import Media, Prompt, Sample, Truth

FAMILIES = ("qwen3_5", "qwen3_omni_moe", "gemma4", "glm4v", "lfm2_vl", "mistral3")
QUESTION = "? ? ?"


def families(day: Day) -> Iterator[Row]:
    """Compare the forwards of each family as `parity` does those of Qwen2.5-VL."""
    for name in FAMILIES:
        release()
        config = ModelConfig(build=BuildConfig(family=name))
        with torch.device(DEVICE):
            policy = Policy(*load_model(config, CORPUS), config)
        case = Case(0, 6, 2) if day.tiny else Case(0, 64, 8)  # the prompt is as long as it is
        micro = micro_batch(policy, case, words(policy), small_prompt(policy))
        for row in compare(policy, micro):
            yield {"family": name, **row}


def words(policy: Policy) -> Sequence[int]:
    """Return ids that stand for no medium."""
    ids: list[int] = policy.processor.tokenizer(CORPUS[0], add_special_tokens=False)["input_ids"]
    return ids


def small_prompt(policy: Policy) -> Prompt:
    """Return a prompt with one small image."""
    pixels = np.random.default_rng(0).integers(0, 255, (56, 84, 3), np.uint8)
    sample = Sample("0", "noise", (Media("image", data=b"-"), QUESTION), Truth())
    return make_prompt(sample, [Image.fromarray(pixels)], policy.family, policy.processor)
