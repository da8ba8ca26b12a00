"""Weights in files, written and read a part at a time: who writes them never holds all of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import safe_open

from vlmrl.policy.weights.units import Unit, bytes_of, copy_to_cpu
from vlmrl.system import distributed
from vlmrl.system.atomic_files import write_json

MAX_BYTES = 4 * 2**30
"""Size of the files of a large sharded model, and of what a rank that writes holds of it."""

NAME = "model.safetensors"


def deal_parts(
    units: Iterable[Unit], total: int, max_bytes: float = MAX_BYTES
) -> Iterator[tuple[int, Unit]]:
    """Yield the parts of a model that this rank writes, each with its number, as copies on the CPU.

    A part is of neighbouring units, together at most `max_bytes` and at most a rank's share of the `total`
    bytes, or one unit that is larger. All ranks ask for the units together, part n is of rank
    n mod world, and each rank is given its part when the others have theirs: they write at the same time.
    """
    rank, world = distributed.rank(), distributed.world()
    most = min(max_bytes, -(-total // world))
    own: Unit = {}
    number = size = 0
    for unit in units:
        if size and size + bytes_of(unit) > most:
            if number % world == world - 1 and own:
                yield number - (number - rank) % world, own
                own = {}
            number, size = number + 1, 0
        size += bytes_of(unit)
        if number % world == rank:
            own |= {n: w.to("cpu", copy=True).contiguous() for n, w in unit.items()}
        del unit  # before the next one is gathered
    if own:
        yield number - (number - rank) % world, own


def write_parts(folder: Path, parts: Iterable[tuple[int, Unit]]) -> list[Path]:
    """Write parts of a model, as they are named in files, below names that `name_parts` replaces."""
    written = []
    for number, part in parts:
        folder.mkdir(parents=True, exist_ok=True)
        written.append(path := folder / _unnamed(number))
        safetensors.torch.save_file(part, path, {"format": "pt"})
        sync(path)
    return written


def name_parts(folder: Path, count: int) -> dict[str, str]:
    """Give all `count` parts transformers' names, and several an index; return the names by those before."""
    names = dict(zip(map(_unnamed, range(count)), _names(NAME, count), strict=True))
    for unnamed, name in names.items():
        os.replace(folder / unnamed, folder / name)
    if count > 1:
        at = {weight: name for name in names.values() for weight in _slices(folder / name)}
        total = sum((folder / name).stat().st_size for name in names.values())
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(at.items()))}
        write_json(folder / f"{NAME}.index.json", index)
    return names


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


def sync(path: Path) -> None:
    """Bring a file or a folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _unnamed(number: int) -> str:
    return f".part-{number}"


def _names(name: str, count: int) -> list[str]:
    stem, _, suffix = name.rpartition(".")
    if count == 1:
        return [name]
    return [f"{stem}-{n + 1:05}-of-{count:05}.{suffix}" for n in range(count)]


def _slices(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        return {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  no mapping
