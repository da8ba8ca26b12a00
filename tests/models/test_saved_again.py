"""A model that is loaded and saved again: its files have the keys that they had."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.small import CORPUS, model_config
from vlmrl import plugins
from vlmrl.config import ModelConfig
from vlmrl.models.loading import Loaded, load_model

FAMILIES = plugins.names("family")


def save(loaded: Loaded, folder: Path) -> dict[str, Any]:
    loaded.family.save(loaded.model, str(folder), loaded.model.state_dict())
    loaded.processor.save_pretrained(folder)
    return {path.name: json.loads(path.read_text()) for path in folder.glob("*.json")}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_configs_gain_no_keys(family: str, tmp_path: Path) -> None:
    built = save(load_model(model_config(family), CORPUS), tmp_path / "built")
    for number in range(2):
        before = tmp_path / (f"again{number - 1}" if number else "built")
        again = load_model(ModelConfig(path=str(before)))
        assert save(again, tmp_path / f"again{number}") == built
