"""The adapter of a LoRA run as a PEFT folder, which `PeftModel.from_pretrained` loads.

A checkpoint holds it next to the merged weights, and a resumed run reads it back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from vlmrl.policy.policy import Policy
from vlmrl.policy.trainable import is_adapter

FOLDER = "adapter"
"""The folder inside a checkpoint."""
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_MODEL, _NAME = "base_model.model.", ".default."
"""What peft puts before the name of a weight, and what it leaves out of it in files."""
_LENGTHS = ".lora_magnitude_vector"
"""The end of the path of DoRA's lengths; in files it is their whole name."""


def save(folder: Path, policy: Policy, state: Mapping[str, torch.Tensor]) -> None:
    """Write the adapter, whose weights are `state` (`Policy.training_state`), with peft's config of it.

    The config names the base model as the run's config does; a local folder by its absolute path. What
    trains beside the adapter are peft's `modules_to_save`.
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
        modules_to_save=_whole_modules(policy, state) or None,
        auto_mapping={
            "base_model_class": base.__name__,
            "parent_library": base.__module__,
        },
    )
    config.save_pretrained(str(folder))
    named = {
        _MODEL + (_written(name) if is_adapter(name) else name): p.contiguous()
        for name, p in state.items()
    }
    safetensors.torch.save_file(named, folder / WEIGHTS, {"format": "pt"})


def _whole_modules(policy: Policy, names: Iterable[str]) -> list[str]:
    """Return the paths of the largest modules whose weights are all among these names, adapters apart.

    A weight that is not in any, because others are beside it, is loaded by its name.
    """
    beside = {name for name in names if not is_adapter(name)}
    paths: list[str] = []
    for path, module in policy.base.named_modules() if beside else ():
        own = {f"{path}.{name}" for name, _ in module.named_parameters()}
        within = any(path.startswith(f"{other}.") for other in paths)
        # peft wraps what is called, and a list is not.
        if own and own <= beside and not within and not isinstance(module, torch.nn.ModuleList):
            paths.append(path)
    return paths


def load(checkpoint: Path) -> dict[str, Any]:
    """Return what `save` wrote, under the names of `Policy.training_state`; empty without an adapter."""
    file = checkpoint / FOLDER / WEIGHTS
    if file.is_file():
        named = safetensors.torch.load_file(file)
        return {_name_of(name.removeprefix(_MODEL)): weight for name, weight in named.items()}
    older = checkpoint / "trainer/adapter.safetensors"  # up to format 2
    return safetensors.torch.load_file(older) if older.is_file() else {}


def _written(name: str) -> str:
    """Return the name of an adapter's weight in peft's files."""
    return name.removesuffix(f"{_NAME}weight") if _LENGTHS in name else name.replace(_NAME, ".")


def _name_of(written: str) -> str:
    if written.endswith(_LENGTHS):
        return f"{written}{_NAME}weight"
    layer, _, leaf = written.rpartition(".")
    return f"{layer}{_NAME}{leaf}" if is_adapter(written) else written
