"""References to the models that a config names: `model: NAME` among the options of a reward."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator

from vlmrl.config.sections.model import NamedModel, NamedModelConfig
from vlmrl.config.sections.rewards import RewardConfig
from vlmrl.plugins import nearest

__all__ = ["NamedModels", "name_model"]

NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}", re.ASCII)
"""A name becomes a part of file names and of names of curves."""


def _check_names(models: dict[str, NamedModelConfig]) -> dict[str, NamedModelConfig]:
    for name in models:
        if not NAME.fullmatch(name):
            raise ValueError(f"expected names of letters, digits, '.', '-' and '_', got {name!r}")
    return models


NamedModels = Annotated[dict[str, NamedModelConfig], AfterValidator(_check_names)]


def name_model(reward: RewardConfig, models: Mapping[str, NamedModelConfig]) -> RewardConfig:
    """Return the reward with the model that its option `model` names in place of the name.

    With a `url` beside it, `model` is the name that the server there has for it. Without any models, it
    is an option like others.

    Raises:
        ValueError: there is no model of this name.
    """
    name = reward.options.get("model")
    if not isinstance(name, str) or "url" in reward.options or not models:
        return reward
    if name not in models:
        raise ValueError(
            f"reward {reward.label!r}, option 'model': expected one of models, got {name!r}"
            f"{nearest(name, sorted(models))}"
        )
    model = NamedModel(name=name, **models[name].model_dump())
    return reward.model_copy(update={"options": {**reward.options, "model": model.model_dump()}})
