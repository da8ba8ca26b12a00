"""What a checkpoint is served as: a model that writes, one that rates an answer, or one that compares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import CONFIG_MAPPING, PretrainedConfig

from vlmrl.commands.served_models.compared_model import ComparedModel
from vlmrl.commands.served_models.rated_model import RatedModel, find_value_head
from vlmrl.commands.serving.asked_model import Dtype, ServedModel
from vlmrl.commands.serving.batches import Answers
from vlmrl.commands.trained_run import run_of
from vlmrl.config import PluginRef
from vlmrl.errors import UserError

__all__ = ["open_model"]

DUAL_ENCODERS = ("clip", "siglip", "siglip2")
"""Model types whose images and texts have one space."""
CLASSIFIER = "ForSequenceClassification"


def open_model(model: str, dtype: Dtype) -> Answers:
    """Load a checkpoint as its config says.

    Raises:
        UserError: there is no such model, or it brings code of its own.
    """
    folder = run_of(model)[1]
    config = _config_of(folder)
    kind, made = config.get("model_type"), " ".join(config.get("architectures") or ())
    if kind in DUAL_ENCODERS:
        return ComparedModel(folder, dtype)
    if kind is not None and kind not in CONFIG_MAPPING:
        raise UserError(
            f"{model}: {made or kind} brings code of its own, which is not run: expected an architecture "
            "that transformers has"
        )
    head = find_value_head(folder) if config else None
    if head is not None or CLASSIFIER in made:
        return RatedModel(folder, dtype, head)
    return ServedModel(model, PluginRef(name="hf"), dtype)


def _config_of(folder: str) -> Mapping[str, Any]:
    """Return what config.json says; empty where there is none, which loading will say better."""
    try:
        found: Mapping[str, Any] = PretrainedConfig.get_config_dict(folder)[0]
        return found
    except (OSError, ValueError):
        return {}
