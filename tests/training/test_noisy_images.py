"""NoisyRollout: what noise does to an image, who sees it, and that the clean prompt is trained on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.rollouts_ahead import ahead_config, begin_training
from vlmrl import plugins
from vlmrl.errors import UserError
from vlmrl.parts.strategies.noisy_images import NoisyImages, add_noise
from vlmrl.training.strategy import BatchDraw
from vlmrl.training.trainer import Trainer

DRAW = BatchDraw(0, 0, 0, 0.0)


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    folder = tmp_path_factory.mktemp("noisy") / "run"
    with begin_training(ahead_config(folder, "engine=hf", "rollout.group_size=5")) as built:
        yield built


@pytest.mark.parametrize("step", [0, 137, 500, 999])
def test_an_image_is_mixed_with_noise_as_slow_code_does(step: int) -> None:
    share = 1.0
    for number in range(step + 1):
        x = -6 + 12 * number / 999
        share *= 1 - (1 / (1 + math.exp(-x)) * (0.5e-2 - 1e-5) + 1e-5)
    image = Image.new("RGB", (3, 2), (10, 120, 250))
    noise = np.random.default_rng(5).standard_normal((2, 3, 3))
    found = np.asarray(add_noise(image, step, 5))
    for y in range(2):
        for x_ in range(3):
            for channel, value in enumerate((10, 120, 250)):
                mixed = (
                    math.sqrt(share) * value / 255 + math.sqrt(1 - share) * noise[y, x_, channel]
                )
                expected = int(min(1.0, max(0.0, mixed)) * 255)
                assert abs(int(found[y, x_, channel]) - expected) <= 1


def test_the_noise_fades_as_the_published_sigmoid() -> None:
    strategy = NoisyImages()  # of 60 steps, the middle at 40
    for done in range(60):
        decay = 1 - 1 / (1 + math.exp(-30 * (done / 60 - 40 / 60)))
        assert strategy.step(done / 60) == int(500 * decay)
    assert strategy.step(0) == 499 and strategy.step(2 / 3) == 250 and strategy.step(0.99) == 0


def test_the_last_half_of_a_group_sees_noise_and_is_trained_on_the_clean_prompt(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = trainer._generate(trainer._draw_prompts(0))
    asked = []
    generate = type(trainer.run_parts).ask

    def watched(run, prompts, count, draw, purpose):  # type: ignore[no-untyped-def]
        asked.extend(prompts)
        return generate(run, prompts, count, draw, purpose)

    monkeypatch.setattr(type(trainer.run_parts), "ask", watched)
    after = NoisyImages().prepare(before, DRAW, trainer.run_parts)
    assert after.batch is before.batch and after.shape == before.shape
    for clean, group in zip(before.completions, after.completions, strict=True):
        assert group[:3] == clean[:3]
        assert [c.origin for c in group] == ["policy"] * 3 + ["distortion"] * 2
    for prompt, noisy in zip(before.batch.prompts, asked, strict=True):
        assert noisy.text == prompt.text and len(noisy.media) == 1
        assert not np.array_equal(np.asarray(noisy.media[0]), np.asarray(prompt.media[0]))
    late = BatchDraw(0, 0, 0, 0.99)
    assert NoisyImages().prepare(before, late, trainer.run_parts) is before


def test_advantages_are_of_the_whole_group_and_a_step_is_taken(tmp_path: Path) -> None:
    more = ["strategies=[{name: noisy_images, options: {count: 1}}]", "algorithm=grpo"]
    with begin_training(ahead_config(tmp_path / "run", *more)) as trainer:
        report = trainer.step()
    assert report.rollouts.completions[0][-1].origin == "distortion"
    plain = (report.rewards.total - report.rewards.total.mean(-1, keepdim=True)) != 0
    assert torch.equal(report.advantages.values != 0, plain)
    assert report.metrics["update/skipped"] == 0 and "noisy_images/reward" in report.metrics


@pytest.mark.parametrize("options", [{"count": 0}, {"strength": 1000}])
def test_a_choice_that_makes_no_sense_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(UserError, match="expected"):
        plugins.build("strategy", "noisy_images", options)
