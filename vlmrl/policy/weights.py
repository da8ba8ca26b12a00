"""All weights of a model, one unit at a time (a layer, or a weight that is in no layer), and their files.

Where weights are sharded all ranks gather a unit together and drop it for the next one, so that no rank
holds the model; only a rank that wants a unit copies it, and files are written a part at a time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import safe_open
from torch.distributed.tensor import DTensor

from vlmrl.models.base import Family
from vlmrl.policy import quantization, trainable
from vlmrl.policy.trainable import decoder_layer_of
from vlmrl.system import distributed
from vlmrl.system.files import write_json

Unit = dict[str, torch.Tensor]
"""Weights by name; those of one layer come together."""

MAX_BYTES = 4 * 2**30
"""Size of the files of a large sharded model, and of what a rank that writes holds of it."""

NAME = "model.safetensors"


def units_of(model: torch.nn.Module, family: Family) -> Iterator[Unit]:
    """Yield the weights as the model holds them, whole or as slices, and its saved buffers.

    In the model's order, under its own names; of tied weights the first name.
    """

    def unit_of(named: tuple[str, torch.Tensor]) -> str:
        return decoder_layer_of(named[0], family) or trainable.layer_of(named[0])

    for _, unit in groupby(model.named_parameters(), unit_of):
        yield {name: parameter.detach() for name, parameter in unit}
    if buffers := dict(_saved_buffers(model)):
        yield buffers


def gather(units: Iterable[Unit], dtype: torch.dtype | None = None) -> Iterator[Unit]:
    """Yield the units whole; each is gone when the next one is asked for and nobody has copied it.

    All ranks ask for all of them. With `dtype`, slices become this before they are gathered.
    """
    for unit in units:
        yield {name: _whole(_cast(weight, dtype)) for name, weight in unit.items()}


def merge(units: Iterable[Unit], model: object, dtype: torch.dtype | None = None) -> Iterator[Unit]:
    """Yield the units, whole, of an equal model without adapters, in `dtype`."""
    for unit in units:
        with torch.no_grad():
            whole = {
                name.replace(".base_layer.", "."): _cast(_merge_one(name, unit, model), dtype)
                for name in unit
                if not trainable.is_adapter(name)
            }
        yield whole
        del whole  # before the next unit is gathered


def take_part(units: Iterable[Unit]) -> None:
    """Gather the units with the other ranks, and keep nothing: no rank can gather them alone."""
    for _ in units:
        pass


def without_adapters(units: Iterable[Unit]) -> Iterator[Unit]:
    """Yield the units without adapters, under the names of a model that has none."""
    for unit in units:
        yield {
            name.replace(".base_layer.", "."): weight
            for name, weight in unit.items()
            if not trainable.is_adapter(name)
        }


def find_tied_names(model: torch.nn.Module) -> dict[str, str]:
    """Return the further names of tied weights, each with the first one, without the parts of adapters."""
    first: dict[int, str] = {}
    tied = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        plain = name.replace(".base_layer.", ".")
        if first.setdefault(id(parameter), plain) != plain:
            tied[plain] = first[id(parameter)]
    return tied


def with_tied_names(units: Iterable[Unit], model: torch.nn.Module) -> Iterator[Unit]:
    """Yield the units of `model`, tied weights under each of their names."""
    tied = find_tied_names(model)
    for unit in units:
        yield unit | {name: unit[first] for name, first in tied.items() if first in unit}
        del unit  # before the next one is gathered


def count_bytes(model: torch.nn.Module) -> int:
    """Return the size of a model without adapters, whole, tied weights under each of their names."""
    named = [*model.named_parameters(remove_duplicate=False), *_saved_buffers(model)]
    return sum(quantization.size_of(w) for name, w in named if not trainable.is_adapter(name))


def copy_to_cpu(unit: Mapping[str, torch.Tensor]) -> Unit:
    """Copy a unit to the CPU, unless it was gathered there for this."""
    return {name: weight.to("cpu").contiguous() for name, weight in unit.items()}


def bytes_of(unit: Mapping[str, torch.Tensor]) -> int:
    """Return the size of whole weights; of slices, that of the whole."""
    return sum(weight.numel() * weight.element_size() for weight in unit.values())


def _whole(weight: torch.Tensor) -> torch.Tensor:
    return weight.full_tensor() if isinstance(weight, DTensor) else weight


def _merge_one(name: str, unit: Unit, model: Any) -> torch.Tensor:
    layer, _, leaf = name.partition(".base_layer.")
    if leaf != "weight":
        return _whole(unit[name])
    packed = model.get_parameter(name)
    value = (
        quantization.dequantize(packed) if hasattr(packed, "quant_state") else _whole(unit[name])
    )
    first, second = (_whole(unit[f"{layer}.lora_{matrix}.default.weight"]) for matrix in "AB")
    lengths = unit.get(f"{layer}.lora_magnitude_vector.default.weight")
    lengths = None if lengths is None else _whole(lengths)
    whole = trainable.merged(model.get_submodule(layer), value, first, second, lengths)
    return whole.to(value.dtype)


def _cast(weight: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    return weight if dtype is None or not weight.is_floating_point() else weight.to(dtype)


def _saved_buffers(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for path, module in model.named_modules():
        for leaf, buffer in module.named_buffers(recurse=False):
            if leaf not in module._non_persistent_buffers_set:
                yield (f"{path}.{leaf}" if path else leaf), buffer


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
    slices: dict[str, Any] = {}
    for path in [file, *sorted(file.parent.glob(f"{file.stem}-*-of-*{file.suffix}"))]:
        slices |= _slices(path) if path.is_file() else {}
    return slices


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
