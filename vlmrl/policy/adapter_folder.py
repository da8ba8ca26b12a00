"""The adapter of a LoRA run as a PEFT folder, which `PeftModel.from_pretrained` loads.

A checkpoint holds it next to the merged weights, and a resumed run reads it back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from vlmrl.policy.policy import Policy

FOLDER = "adapter"
"""The folder inside a checkpoint."""
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_MODEL, _NAME = "base_model.model.", ".default."
"""What peft puts before the name of a weight, and what it leaves out of it in files."""


def save(folder: Path, policy: Policy, state: Mapping[str, torch.Tensor]) -> None:
    """Write the adapter, whose weights are `state` (`Policy.training_state`), with peft's config of it.

    The config names the base model as the run's config does; a local folder by its absolute path.
    """
    assert policy.adapter is not None
    folder.mkdir(parents=True)
    path = policy.config.path
    if path and Path(path).expanduser().is_dir():
        path = str(Path(path).expanduser().resolve())
    base = type(policy.base)
    config = dataclasses.replace(
        policy.adapter.peft_config["default"],
        base_model_name_or_path=path,
        inference_mode=True,
        auto_mapping={
            "base_model_class": base.__name__,
            "parent_library": base.__module__,
        },
    )
    config.save_pretrained(str(folder))
    named = {_MODEL + name.replace(_NAME, "."): p.contiguous() for name, p in state.items()}
    safetensors.torch.save_file(named, folder / WEIGHTS, {"format": "pt"})


def load(checkpoint: Path) -> dict[str, Any]:
    """Return what `save` wrote, under the names of `Policy.training_state`; empty without an adapter."""
    file = checkpoint / FOLDER / WEIGHTS
    if file.is_file():
        named = safetensors.torch.load_file(file)
        parts = {name: name.removeprefix(_MODEL).rpartition(".") for name in named}
        return {f"{layer}{_NAME}{leaf}": named[name] for name, (layer, _, leaf) in parts.items()}
    older = checkpoint / "trainer/adapter.safetensors"  # up to format 2
    return safetensors.torch.load_file(older) if older.is_file() else {}
