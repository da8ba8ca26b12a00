"""The adapter of every family is a PEFT folder whose keys fit transformers' own model, and is read back."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch
import transformers
from peft import PeftModel

from helpers.small import CORPUS, model_config, policy
from vlmrl import plugins
from vlmrl.config import LoraConfig
from vlmrl.models.loading import load_model
from vlmrl.policy import adapter_folder


@pytest.mark.slow
@pytest.mark.parametrize("name", plugins.names("family"))
def test_peft_puts_the_adapter_on_the_published_model(name: str, tmp_path: Path) -> None:
    family = plugins.build("family", name)
    made = policy(name, lora=LoraConfig(rank=2, towers=list(family.lora_targets)))
    with torch.no_grad():
        for weight in made.trainable:
            weight.add_(torch.randn_like(weight) * 0.05)
    state = made.training_state()
    folder = tmp_path / adapter_folder.FOLDER
    adapter_folder.save(folder, made, state)
    base, processor, _ = load_model(model_config(name), CORPUS, seed=0)
    base.save_pretrained(tmp_path / "base")
    processor.save_pretrained(tmp_path / "base")
    reader = transformers.AutoModelForImageTextToText
    if name in ("qwen2_audio", "voxtral"):
        reader = transformers.AutoModelForMultimodalLM
    plain = reader.from_pretrained(tmp_path / "base")
    loaded = PeftModel.from_pretrained(plain, folder).state_dict()
    written = safetensors.torch.load_file(folder / adapter_folder.WEIGHTS)
    found = {n.replace(".default.", "."): p for n, p in loaded.items() if ".lora_" in n}
    assert found.keys() == written.keys()
    assert all(p.equal(written[n]) for n, p in found.items())
    again = adapter_folder.load(tmp_path)
    assert again.keys() == state.keys()
    assert all(p.equal(again[n]) for n, p in state.items())


def test_an_adapter_where_older_checkpoints_had_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "trainer").mkdir()
    state = {"model.q_proj.lora_A.default.weight": torch.ones(2, 3)}
    safetensors.torch.save_file(state, tmp_path / "trainer/adapter.safetensors")
    assert adapter_folder.load(tmp_path).keys() == state.keys()
