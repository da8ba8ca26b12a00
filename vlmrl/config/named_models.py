"""References to the models that a config names: `model: NAME` among the options of a reward."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator

from vlmrl.config.sections.model import NamedModel, NamedModelConfig
from vlmrl.config.sections.rewards import RewardConfig
from vlmrl.plugins import nearest

NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}", re.ASCII)
"""A name becomes a part of file names and of names of curves."""


def _check_names(models: dict[str, NamedModelConfig]) -> dict[str, NamedModelConfig]:
    for name in models:
        if not NAME.fullmatch(name):
            raise ValueError(f"expected names of letters, digits, '.', '-' and '_', got {name!r}")
    return models


NamedModels = Annotated[dict[str, NamedModelConfig], AfterValidator(_check_names)]


START = "start"
"""The `path` of a model that is what the policy starts from."""


def checkpoint_of(name: str, model: NamedModelConfig, start: str | None) -> str:
    """Return the path of a named model, empty for a served one; `start`: see `name_model`.

    Raises:
        ValueError: it is what the policy starts from, and that is no file.
    """
    if model.path == START and start is None:
        raise ValueError(f"models.{name}.path: start needs model.path: a built model is no file")
    return start or "" if model.path == START else model.path


def name_model(
    reward: RewardConfig, models: Mapping[str, NamedModelConfig], start: str | None
) -> RewardConfig:
    """Return the reward with the model that its option `model` names in place of the name.

    With a `url` beside it, `model` is the name that the server there has for it. Without any models, it
    is an option like others. `start` is the checkpoint that the policy starts from, None if it is built.

    Raises:
        ValueError: there is no model of this name, or none that the policy starts from.
    """
    name = reward.options.get("model")
    if not isinstance(name, str) or "url" in reward.options or not models:
        return reward
    if name not in models:
        raise ValueError(
            f"reward {reward.label!r}, option 'model': expected one of models, got {name!r}"
            f"{nearest(name, sorted(models))}"
        )
    section = models[name]
    path = checkpoint_of(name, section, start)
    model = NamedModel(name=name, **{**section.model_dump(), "path": path})
    return reward.model_copy(update={"options": {**reward.options, "model": model.model_dump()}})
