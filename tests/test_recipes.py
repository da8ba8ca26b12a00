"""Recipes of published systems: each says whose it is, is sound, and trains on rows of its layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.recipe_rows import DRAWN, write_rows
from vlmrl import plugins
from vlmrl.assemble import lifecycle
from vlmrl.commands.validate import validate
from vlmrl.config import Config, load
from vlmrl.config.tree import shipped

RECIPES = [name for name in shipped() if name.startswith("recipes/")]
QUICK = (
    "recipes/adarft",
    "recipes/concise",
    "recipes/deepeyes",
    "recipes/on_policy_distillation",
    "recipes/r1_aqa",
    "recipes/videochat_r1",
    "recipes/visual_rft_lisa",
    "recipes/vlm_r1_lora",
)
"""A sampler, stages, tools, a teacher, audio, video, an image, LoRA: these train in every run, others at
night."""
SMALL = [
    "model.path=",
    "model.dtype=float32",
    "model.gradient_checkpointing=false",
    "model.min_pixels=",
    "run.threads=1",
    "run.steps=2",
    "run.report=false",
    "tracking.tensorboard=false",
    "evaluation=",
    "engine=hf",
    "rollout.max_staleness=0",
    "rollout.prompts=4",
    "rollout.group_size=4",
    "rollout.max_tokens=8",
    "optimizer.minibatches=1",
]
FAMILIES = {"Qwen2-Audio": "qwen2_audio", "Qwen2.5-Omni": "qwen2_5_omni", "Qwen2-VL": "qwen2_vl"}
"""Start of a published model's name -> its family; else Qwen2.5-VL's."""


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_sound_in_every_part_and_stage(name: str) -> None:
    config = load(name)
    validate(config)
    plugins.build("engine", config.engine.name, config.engine.options)
    for progress in (0.0, 0.5, 0.999):
        chosen = config.at(progress).algorithm
        plugins.build("algorithm", chosen.name, chosen.options)
    assert config.model.path and config.run.name == name.removeprefix("recipes/")
    for source in config.named_sources:
        assert source.card in DRAWN or str(source.options["path"]).startswith("data/")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.nightly) for name in RECIPES],
)
def test_a_recipe_takes_two_steps_with_a_small_model(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(load(name), tmp_path)
    overrides = small(load(name))
    if load(name).teacher:
        overrides += [f"teacher.path={teacher_of(name, overrides, tmp_path / 'teacher')}"]
    config = load(name, [*overrides, f"run.dir={tmp_path / 'run'}"])
    summary = lifecycle.train(config)
    assert summary["finished"] and summary["steps"] == 2
    assert summary["dropped"] == {} and summary["faulted"] == {}


def teacher_of(name: str, overrides: list[str], folder: Path) -> Path:
    """Return the checkpoint of a small model that a step of GRPO on the recipe's rows has changed."""
    alone = ["teacher=", "algorithm=grpo", "model.lora=", "run.steps=1", "run.seed=1"]
    assert lifecycle.train(load(name, [*overrides, *alone, f"run.dir={folder}"]))["finished"]
    return folder / "checkpoints/step-1"


def small(config: Config) -> list[str]:
    """Return the overrides that make a recipe a run of seconds, its parts and stages as they are."""
    name = str(config.model.path).rpartition("/")[2]
    family = next((f for start, f in FAMILIES.items() if name.startswith(start)), "qwen2_5_vl")
    pixels = "" if config.model.max_pixels is None else 3136
    overrides = [*SMALL, f"model.build.family={family}", f"model.max_pixels={pixels}"]
    if config.sft:
        overrides += [f"sft.{key}=2" for key in ("max_steps", "batch_size", "validate_from")]
        overrides += ["sft.decay_steps=1", "sft.warmup_steps=1", "sft.validation_limit=2"]
    for index, stage in enumerate(config.stages):
        sizes = {"max_tokens": 8, "group_size": 4, "prompts": 4}
        overrides += [
            f"stages.{index}.rollout.{k}={v}" for k, v in sizes.items() if k in stage.rollout
        ]
    return overrides
