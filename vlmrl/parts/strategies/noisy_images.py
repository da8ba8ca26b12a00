"""NoisyRollout: a part of each group sees the images through noise, and all are trained on as if without.

Source: Liu et al. 2025, "NoisyRollout", arXiv 2504.13055, section 3.2, and its code (image_aug): the images
at step `strength` of a diffusion of 1000, less and less as the training goes on, by a sigmoid. Advantages
are over the whole group; ratios are those of the clean prompt. Differs: the completions that see noise
take the places of clean ones, so that groups keep their size and more is generated than trained on;
the share of training done is counted from 0. Videos and sounds stay as they are.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from PIL import Image

from vlmrl.data.prompt import with_media
from vlmrl.runs import rank_shards
from vlmrl.schema import Prompt, Rewards, Rollouts
from vlmrl.schema.media import PilImage
from vlmrl.system.seeds import seed_of
from vlmrl.training.strategy import BatchDraw, RunParts, Strategy, of_origin

SEED_PURPOSE = 25
STEPS = 1000
"""Steps of the diffusion."""


@dataclass(frozen=True)
class NoisyImages(Strategy):
    """Completions of noisy images in each group. Example: NoisyImages(count=6, strength=500)."""

    curves: ClassVar[Mapping[str, str]] = {
        "noisy_images/reward": "Mean reward of completions that saw noise.",
    }

    count: int | None = None
    """Completions of a group that see noise; None: half of them."""
    strength: int = 500
    """Step of the diffusion at which images are as training begins, below 1000."""
    steepness: float = 30.0
    """How suddenly the noise goes."""
    midpoint: float = 2 / 3
    """Share of training at which half of `strength` is left."""

    def __post_init__(self) -> None:
        if self.count is not None and self.count < 1:
            raise ValueError(f"expected count of at least 1, got {self.count}")
        if not 0 <= self.strength < STEPS:
            raise ValueError(f"expected strength from 0 to {STEPS - 1}, got {self.strength}")

    def prepare(self, rollouts: Rollouts, draw: BatchDraw, run: RunParts) -> Rollouts:
        """Put completions of noisy images in the places of the last ones of each group with images."""
        size = rollouts.shape[1]
        count = min(size, self.count or size // 2)
        prompts = rollouts.batch.prompts
        asked = [p for p, q in enumerate(prompts) if any(m.kind == "image" for m in q.sample.media)]
        step = self.step(draw.progress)
        if not (asked and count and step):
            return rollouts
        seed = draw.seed(SEED_PURPOSE)
        noisy = [_distort(prompts[p], step, run, seed_of(seed, p)) for p in asked]
        answers = run.ask(noisy, count, draw, SEED_PURPOSE)
        completions = list(rollouts.completions)
        for p, group in zip(asked, answers.completions, strict=True):
            seen = tuple(completion.with_origin("distortion") for completion in group)
            completions[p] = (*completions[p][: size - count], *seen)
        return replace(rollouts, completions=tuple(completions))

    def metrics(self, rollouts: Rollouts, rewards: Rewards) -> dict[str, float]:
        """Return the mean reward that `curves` names; empty if nothing saw noise."""
        paid = [float(rewards.total[p, g]) for p, g in of_origin(rollouts, rewards, "distortion")]
        return {"noisy_images/reward": statistics.fmean(paid)} if paid else {}

    def step(self, progress: float) -> int:
        """Return the step of the diffusion at this share of training."""
        gone = 1 / (1 + math.exp(-self.steepness * (progress - self.midpoint)))
        return int(self.strength * (1 - gone))


@functools.cache
def kept() -> np.ndarray:
    """Return the share of an image's variance that is left at each step, [1000] in (0, 1)."""
    rates = 1 / (1 + np.exp(-np.linspace(-6, 6, STEPS))) * (0.5e-2 - 1e-5) + 1e-5
    return np.cumprod(1 - rates)


def add_noise(image: PilImage, step: int, seed: int) -> PilImage:
    """Return an image as it is at a step of the diffusion."""
    clean = np.asarray(image.convert("RGB"), np.float64) / 255
    noise = np.random.default_rng(seed).standard_normal(clean.shape)
    share = kept()[step]
    mixed = math.sqrt(share) * clean + math.sqrt(1 - share) * noise
    return Image.fromarray((mixed.clip(0, 1) * 255).astype(np.uint8))


def _distort(prompt: Prompt, step: int, run: RunParts, seed: int) -> Prompt:
    """Return a prompt with noise on its images; one whose media are on another rank is unchanged."""
    if not rank_shards.is_here(prompt):
        return prompt
    media = [
        add_noise(medium, step, seed_of(seed, number))
        if isinstance(medium, Image.Image)
        else medium
        for number, medium in enumerate(prompt.media)
    ]
    return with_media(prompt, media, run.policy.family, run.policy.processor)
