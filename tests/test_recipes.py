"""Recipes of published systems: each says whose it is, is sound, and trains on rows of its layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.chat_server import chat_servers, reply_as_asked
from helpers.daily import marked
from helpers.rating_models import save_clip, save_value_head
from helpers.recipe_rows import DRAWN, write_rows
from helpers.score_server import addresses, score_servers
from helpers.small_recipes import small
from vlmrl import plugins
from vlmrl.assemble import lifecycle
from vlmrl.assemble.sources import open_training, with_audio
from vlmrl.assemble.validate import validate
from vlmrl.config import load
from vlmrl.config.tree import shipped
from vlmrl.data.multiple_choice import shows

SCORES = {"data": [{"score": 0.5}]}
"""What a server that scores two texts replies, as vLLM's `/score`."""
RECIPES = [name for name in shipped() if name.startswith("recipes/")]
QUICK = (
    "recipes/adarft",
    "recipes/concise",
    "recipes/deepeyes",
    "recipes/on_policy_distillation",
    "recipes/mixed_r1",
    "recipes/perl",
    "recipes/perl_reward",
    "recipes/r1_aqa",
    "recipes/videochat_r1",
    "recipes/visual_rft_lisa",
    "recipes/vlm_r1_lora",
    "recipes/vlm_rm",
    "recipes/writing_zero",
)
"""A sampler, stages, tools, a teacher, audio, video, an image, LoRA, a second model, a reward model: these
train in every run, others at night."""


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


def test_a_choice_prompt_of_a_recipe_shows_each_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = set()
    for name in RECIPES:
        config = load(name)
        if "choice" not in str([config.rewards_of(source) for source in config.data.train]):
            continue
        (home := tmp_path / name).mkdir(parents=True)
        monkeypatch.chdir(home)
        write_rows(config, home)
        for source in open_training(config):
            sample = source.sample(0)
            if options := sample.truth.options:
                assert shows(sample.text, options, str(sample.truth.choice)), (name, source.name)
                tried.add(name)
    assert {"recipes/video_r1", "recipes/humanomni_v2", "recipes/mixed_r1"} <= tried


@pytest.mark.parametrize("name", marked(RECIPES, QUICK))
def test_a_recipe_takes_two_steps_with_a_small_model(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(load(name), tmp_path)
    overrides = small(load(name))
    if load(name).teacher:
        overrides += [f"teacher.path={teacher_of(name, overrides, tmp_path / 'teacher')}"]
    with chat_servers() as start, score_servers() as score:
        models = addresses(load(name), score(lambda body: {**SCORES, "score": 0.5}).url)
        for one, model in load(name).models.items():
            if model.url:
                models += [f"models.{one}.url={start(reply_as_asked).url}"]
            else:
                save = save_clip if "clip" in model.path else save_value_head
                models += [f"models.{one}.path={save(tmp_path / one)}", f"models.{one}.devices=''"]
        config = load(name, [*overrides, *models, f"run.dir={tmp_path / 'run'}"])
        summary = lifecycle.train(config)
    assert summary["finished"] and summary["steps"] == config.run.steps
    assert config.run.steps == 2 or config.trains_scores
    assert summary["dropped"] == {} and summary["faulted"] == {}


def teacher_of(name: str, overrides: list[str], folder: Path) -> Path:
    """Return the checkpoint of a small model that a step of GRPO on the recipe's rows has changed."""
    alone = ["teacher=", "algorithm=grpo", "model.lora=", "run.steps=1", "run.seed=1"]
    assert lifecycle.train(load(name, [*overrides, *alone, f"run.dir={folder}"]))["finished"]
    return folder / "checkpoints/step-1"


def test_humansense_sees_its_first_videos_without_their_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = load("recipes/humansense")
    write_rows(config, tmp_path)
    sources = with_audio(open_training(config), plugins.build("family", "qwen2_5_omni"))
    assert {s.name: s.reading.with_audio for s in sources} == {
        "video": False, "audio": True, "both": True,
    }  # fmt: skip
