"""A model that is loaded and saved again: its files have the keys that they had."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.daily import marked
from helpers.small import CORPUS, model_config
from vlmrl import plugins
from vlmrl.config import ModelConfig
from vlmrl.models.loading import Loaded, load_model, save_processor

FAMILIES = plugins.names("family")
DAILY = ("gemma4", "internvl", "lfm2_vl", "qwen2_5_vl", "qwen3_5_moe", "voxtral")


def save(loaded: Loaded, folder: Path) -> dict[str, Any]:
    """Save a model that has been used: its tokenizer has padded a batch."""
    loaded.processor.tokenizer(["Where?", "How many circles?"], padding=True)
    loaded.family.save(loaded.model, str(folder), loaded.model.state_dict())
    save_processor(loaded.processor, str(folder))
    return {path.name: json.loads(path.read_text()) for path in folder.glob("*.json")}


@pytest.mark.slow
@pytest.mark.parametrize("family", marked(FAMILIES, DAILY))
def test_configs_gain_no_keys(family: str, tmp_path: Path) -> None:
    built = save(load_model(model_config(family), CORPUS), tmp_path / "built")
    for number in range(2):
        before = tmp_path / (f"again{number - 1}" if number else "built")
        again = load_model(ModelConfig(path=str(before)))
        assert save(again, tmp_path / f"again{number}") == built


def test_padding_that_others_saved_is_not_taken_for_a_length(tmp_path: Path) -> None:
    """transformers reads the padding of a batch as `max_length` None and hands it to audio, too."""
    loaded = load_model(model_config("gemma4"), CORPUS)
    heard = {"text": ["<|audio|>"], "audio": [np.sin(np.arange(4000, dtype=np.float32))]}
    expected = loaded.processor(**heard, return_tensors="pt")
    save(loaded, tmp_path)
    loaded.processor.tokenizer(["Where?", "How many circles?"], padding=True)
    loaded.processor.save_pretrained(tmp_path)
    again = load_model(ModelConfig(path=str(tmp_path))).processor(**heard, return_tensors="pt")
    assert again.keys() == expected.keys()
    assert all(torch.equal(again[name], expected[name]) for name in again)
