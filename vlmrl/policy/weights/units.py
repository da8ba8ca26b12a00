"""All weights of a model, one unit at a time: a layer, or a weight that is in no layer.

Where weights are sharded all ranks gather a unit together and drop it for the next one, so that no rank
holds the model; only a rank that wants a unit copies it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from vlmrl.models.base import Family
from vlmrl.policy import quantization, trainable
from vlmrl.policy.trainable import decoder_layer_of

__all__ = ["units_of", "without_adapters"]

Unit = dict[str, torch.Tensor]
"""Weights by name; those of one layer come together."""


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


def merge(units: Iterable[Unit], model: Any, dtype: torch.dtype | None = None) -> Iterator[Unit]:
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
    found = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        plain = name.replace(".base_layer.", ".")
        if first.setdefault(id(parameter), plain) != plain:
            found[plain] = first[id(parameter)]
    return found


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
    """Return a weight whole, with what its adapter adds."""
    layer, _, leaf = name.partition(".base_layer.")
    if leaf != "weight":
        return _whole(unit[name])
    packed = model.get_parameter(name)
    value = (
        quantization.dequantize(packed) if hasattr(packed, "quant_state") else _whole(unit[name])
    )
    first, second = (_whole(unit[f"{layer}.lora_{matrix}.default.weight"]) for matrix in "AB")
    delta = trainable.delta_of(model.get_submodule(layer), first, second)
    return (value.float() + delta.float()).to(value.dtype)


def _cast(weight: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    return weight if dtype is None or not weight.is_floating_point() else weight.to(dtype)


def _saved_buffers(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for path, module in model.named_modules():
        for leaf, buffer in module.named_buffers(recurse=False):
            if leaf not in module._non_persistent_buffers_set:
                yield (f"{path}.{leaf}" if path else leaf), buffer
