"""Weights in files, written and read a part at a time: who writes them never holds all of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import safe_open

from vlmrl.policy.weights.units import Unit, bytes_of, copy_to_cpu
from vlmrl.system.atomic_files import write_json

MAX_BYTES = 4 * 2**30
"""Size of the files of a large sharded model, and of what the writing rank holds of it."""

NAME = "model.safetensors"


def save_model(
    write: Callable[[str, Unit], None],
    folder: Path,
    units: Iterable[Unit],
    max_bytes: float = MAX_BYTES,
) -> None:
    """Write a model folder; `write` writes one from a folder's name and weights.

    A model of more than one part gets transformers' names and index of sharded checkpoints.
    """
    homes: list[Path] = []
    for part in join_to_parts(units, max_bytes):
        homes.append(folder / f".part-{len(homes)}")
        write(str(homes[-1]), part)
    files = {
        home: folder / name for home, name in zip(homes, _names(NAME, len(homes)), strict=True)
    }
    for home, file in files.items():
        os.replace(home / NAME, file)
    for other in homes[0].iterdir():
        os.replace(other, folder / other.name)
    for home in homes:
        shutil.rmtree(home)
    if len(files) > 1:
        at = {name: file.name for file in files.values() for name in _slices(file)}
        total = sum(file.stat().st_size for file in files.values())
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(at.items()))}
        write_json(folder / f"{NAME}.index.json", index)


def save_parts(file: Path, units: Iterable[Unit], max_bytes: float = MAX_BYTES) -> None:
    """Write the units to a safetensors file, or to several that `open_slices` finds by its name."""
    written: list[Path] = []
    for part in join_to_parts(units, max_bytes):
        written.append(file.with_name(f".{len(written)}-{file.name}"))
        safetensors.torch.save_file(part, written[-1])
    for path, name in zip(written, _names(file.name, len(written)), strict=True):
        os.replace(path, file.with_name(name))


def open_slices(file: Path) -> dict[str, Any]:
    """Return what `save_parts` wrote under this name; rows are read when a slice `[a:b]` is taken."""
    found: dict[str, Any] = {}
    for path in [file, *sorted(file.parent.glob(f"{file.stem}-*-of-*{file.suffix}"))]:
        found |= _slices(path) if path.is_file() else {}
    return found


def join_to_parts(units: Iterable[Unit], max_bytes: float = MAX_BYTES) -> Iterator[Unit]:
    """Put units together on the CPU to parts of at most `max_bytes`, unless one unit is larger."""
    part: Unit = {}
    for unit in units:
        if part and bytes_of(part) + bytes_of(unit) > max_bytes:
            yield part
            part = {}
        part |= copy_to_cpu(unit)
    if part:
        yield part


def _names(name: str, count: int) -> list[str]:
    stem, _, suffix = name.rpartition(".")
    if count == 1:
        return [name]
    return [f"{stem}-{n + 1:05}-of-{count:05}.{suffix}" for n in range(count)]


def _slices(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        return {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  no mapping
