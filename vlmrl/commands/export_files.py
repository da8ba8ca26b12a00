"""The files of an export: weights in one dtype, configs and processor without local paths."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import safe_open

from vlmrl.policy import adapter_folder
from vlmrl.system.atomic_files import read_json, write_json

__all__ = ["public_name", "write_adapter", "write_merged"]

PATH_KEYS = ("_name_or_path", "name_or_path")
"""Keys under which transformers records where a model or a tokenizer was read."""
MODEL_FILES = ("config.json", "generation_config.json")
_CACHED = re.compile(r"models--(?P<owner>[^/\\]+?)--(?P<name>[^/\\]+)[/\\]snapshots[/\\]")


def write_merged(checkpoint: Path, out: Path, dtype: str) -> None:
    """Write the model of a checkpoint with weights of `dtype`; needs the memory of one weight file."""
    for path in _files(checkpoint):
        if path.suffix == ".safetensors":
            _cast(path, out / path.name, dtype)
        elif path.name.endswith(".index.json"):
            shutil.copyfile(path, out / path.name)
        else:
            _copy(path, out, lambda tree: _with_dtype(tree, dtype))
    for index in out.glob("*.index.json"):
        tree = read_json(index)
        tree["metadata"]["total_size"] = sum(_bytes(p) for p in out.glob("*.safetensors"))
        write_json(index, tree)


def write_adapter(checkpoint: Path, out: Path, dtype: str, base: str) -> None:
    """Write the PEFT adapter of a checkpoint for the base model `base`, and the processor."""
    home = checkpoint / adapter_folder.FOLDER
    _cast(home / adapter_folder.WEIGHTS, out / adapter_folder.WEIGHTS, dtype)
    tree = read_json(home / adapter_folder.CONFIG)
    write_json(out / adapter_folder.CONFIG, {**tree, "base_model_name_or_path": base})
    for path in _files(checkpoint):
        if path.name not in MODEL_FILES and "safetensors" not in path.name:
            _copy(path, out, lambda tree: tree)


def public_name(path: str) -> str:
    """Return what others may read of a model's path: its name on the hub, else the folder's name."""
    if cached := _CACHED.search(f"{path}/"):
        return f"{cached['owner']}/{cached['name']}"
    folder = Path(path).expanduser()
    local = folder.is_dir() or folder.is_absolute() or path.startswith(".")
    return folder.resolve().name if local else path


def _files(checkpoint: Path) -> list[Path]:
    """Return the files that `from_pretrained` reads: neither the trainer's state nor the adapter."""
    return [path for path in sorted(checkpoint.iterdir()) if path.is_file()]


def _cast(source: Path, target: Path, dtype: str) -> None:
    """Copy a weight file with its floating point weights in `dtype`; others stay as they are."""
    weights = {}
    with safe_open(source, framework="pt") as file:
        metadata = file.metadata() or {"format": "pt"}
        for name in file.keys():  # noqa: SIM118  it is no mapping
            value = file.get_tensor(name)
            floating = value.is_floating_point()
            weights[name] = value.to(getattr(torch, dtype)) if floating else value
    safetensors.torch.save_file(weights, target, metadata)


def _bytes(weights: Path) -> int:
    """Return the bytes of the tensors in a weight file."""
    with safe_open(weights, framework="pt") as file:
        return sum(file.get_tensor(name).nbytes for name in file.keys())  # noqa: SIM118


def _copy(path: Path, out: Path, change: Callable[[Any], Any]) -> None:
    if path.suffix != ".json" or path.name == "tokenizer.json":
        shutil.copyfile(path, out / path.name)
        return
    tree = change(_without_paths(json.loads(path.read_bytes())))
    (out / path.name).write_text(json.dumps(tree, indent=2) + "\n")


def _without_paths(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {k: _without_paths(v) for k, v in tree.items() if k not in PATH_KEYS}
    return [_without_paths(v) for v in tree] if isinstance(tree, list) else tree


def _with_dtype(tree: Any, dtype: str) -> Any:
    if isinstance(tree, dict):
        return {k: dtype if k == "dtype" else _with_dtype(v, dtype) for k, v in tree.items()}
    return tree
