"""Models that a config names: what a reward's option holds, and names that are wrong."""

from __future__ import annotations

from typing import Any

import pytest

from vlmrl import config
from vlmrl.config import NamedModel
from vlmrl.errors import UserError
from vlmrl.scoring.reward_components import resolve

MODELS = {"grader": {"url": "http://localhost:1/v1", "model": "m", "timeout_s": 7}}
HOUSE: dict[str, Any] = {
    "model": {"path": "somewhere"},
    "data": {"train": ["shapes"]},
    "evaluation": None,
}


def with_judge(models: Any, **options: Any) -> config.Config:
    rewards = [{"verifier": "judge", "options": options}]
    return config.parse({**HOUSE, "models": models, "rewards": rewards}, "my.yaml")


def test_a_reward_holds_the_model_that_it_names_and_the_config_the_name() -> None:
    settings = with_judge(MODELS, model="grader")
    (reward,) = settings.rewards_of(settings.data.train[0])
    judge: Any = resolve(reward).verifier
    assert judge.model == NamedModel(
        name="grader", url="http://localhost:1/v1", model="m", timeout_s=7
    )
    assert settings.rewards[0].options == {"model": "grader"}
    assert config.parse(settings.model_dump(mode="json")) == settings


def test_a_model_behind_a_url_of_its_own_is_no_name() -> None:
    settings = with_judge(MODELS, model="grader", url="http://elsewhere/v1")
    (reward,) = settings.rewards_of(settings.data.train[0])
    judge: Any = resolve(reward).verifier
    assert judge.model == "grader"


def test_a_name_that_is_not_there_gets_the_nearest() -> None:
    with pytest.raises(UserError, match=r"reward 'judge', option 'model': .*did you mean 'grader'"):
        with_judge(MODELS, model="gradr")


@pytest.mark.parametrize("key", ["seconds", "attempts", "budget", "cache", "key_env"])
def test_limits_of_a_named_model_are_its_own(key: str) -> None:
    values = {"seconds": 1.0, "attempts": 1, "budget": 1, "cache": "x", "key_env": "X"}
    settings = with_judge(MODELS, model="grader", **{key: values[key]})
    with pytest.raises(UserError, match=f"{key} is set where the model is"):
        resolve(settings.rewards_of(settings.data.train[0])[0])


def test_a_name_without_any_models_is_refused_by_the_judge() -> None:
    settings = with_judge({}, model="grader")
    with pytest.raises(UserError, match="name one of the config's models"):
        resolve(settings.rewards_of(settings.data.train[0])[0])
