"""The weights that train: frozen towers, LoRA adapters, and merging them into the weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch

from vlmrl.config import ModelConfig
from vlmrl.errors import UserError
from vlmrl.models.base import Family
from vlmrl.models.parts.frozen_towers import MEDIA_TOWERS, FrozenTowers
from vlmrl.policy import quantization

__all__ = ["towers_with_lr"]


def quantize(model: Any, family: Family, config: ModelConfig) -> None:
    """Make the language tower's linear layers 4-bit ones, in place; LoRA trains on top of them.

    Layers with rows that `quantization.BLOCK` does not divide are left as they are; models of a
    useful size have none.

    Raises:
        UserError: bitsandbytes is not installed.
    """
    dtype = torch.bfloat16 if config.dtype == "bfloat16" else torch.float32
    linear = [(n, m) for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)]
    for name, module in linear:
        if (
            _takes_adapter(name, "language", family)
            and module.in_features % quantization.BLOCK == 0
        ):
            model.set_submodule(name, quantization.nf4(module, dtype))
    model.is_loaded_in_4bit = True  # what peft asks


def freeze(model: Any, family: Family, config: ModelConfig) -> None:
    """Freeze the config's towers, in place; with bfloat16, cast the frozen weights to it.

    Weights that the architecture keeps fixed (tables of positions) stay fixed.

    Raises:
        UserError: nothing is left to train.
    """
    for name, parameter in model.named_parameters():
        if config.lora is None:
            trains = parameter.requires_grad and tower_of(name, family) not in config.freeze
            parameter.requires_grad_(trains)
        if config.dtype == "bfloat16" and parameter.is_floating_point():
            low = torch.float32 if parameter.requires_grad else torch.bfloat16
            parameter.data = parameter.data.to(low)
    if not any(p.requires_grad for p in model.parameters()):
        raise UserError(f"model.freeze: {config.freeze} leaves nothing to train")


def frozen_towers(model: Any, family: Family) -> FrozenTowers | None:
    """Return the model's towers of media if no weight in any of them trains, otherwise None."""
    trained = {tower_of(name, family) for name, p in model.named_parameters() if p.requires_grad}
    if trained & {*MEDIA_TOWERS} or not family.towers.keys() & {*MEDIA_TOWERS}:
        return None
    return FrozenTowers(family.towers, projects="projector" in trained)


def with_lora(model: Any, family: Family, config: ModelConfig) -> Any:
    """Return the peft model around `model`, with adapters on the linear layers of the config's towers.

    Raises:
        UserError: these towers have no layer that takes an adapter.
    """
    import peft

    assert config.lora is not None
    linear = [n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)]
    targets = [
        name
        for tower in config.lora.towers
        for name in linear
        if _takes_adapter(name, tower, family)
    ]
    if not targets:
        raise UserError(
            f"model.lora.towers: {config.lora.towers} hold no layer that takes an adapter"
        )
    return peft.get_peft_model(
        model,
        peft.LoraConfig(
            r=config.lora.rank,
            lora_alpha=config.lora.alpha,  # type: ignore[arg-type]
            lora_dropout=config.lora.dropout,
            target_modules=targets,
        ),
    )


def merge_adapters(model: Any, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the state dict of an equal model without adapters; `state` is this model's."""
    from peft.tuners.lora import LoraLayer

    deltas = {
        name: cast(Any, module).get_delta_weight("default")
        for name, module in model.named_modules()
        if isinstance(module, LoraLayer)
    }
    packed = {n: p for n, p in model.named_parameters() if hasattr(p, "quant_state")}
    scales = tuple(f"{name}." for name in packed)
    out = {}
    for name, value in state.items():
        if is_adapter(name) or name.startswith(scales):
            continue
        if name in packed:
            value = quantization.dequantize(packed[name])
        layer, _, leaf = name.partition(".base_layer.")
        if leaf == "weight" and layer in deltas:
            value = (value.float() + deltas[layer].float()).to(value.dtype)
        out[name.replace(".base_layer.", ".")] = value.detach()
    return out


def without_adapters(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the weights of a state dict under the names that they have without adapters."""
    own = {name: value for name, value in state.items() if not is_adapter(name)}
    return {name.replace(".base_layer.", "."): value.detach() for name, value in own.items()}


def is_adapter(name: str) -> bool:
    """Return whether the weight of this name belongs to an adapter."""
    return ".lora_" in name


def _takes_adapter(layer: str, tower: str, family: Family) -> bool:
    """Return whether the linear layer of this name is in the tower and one of its `lora_targets`."""
    targets = family.lora_targets.get(tower, ())
    return layer.rpartition(".")[2] in targets and tower_of(f"{layer}.weight", family) == tower


def towers_with_lr(names: Iterable[str], family: Family, factors: Mapping[Any, float]) -> list[str]:
    """Return for every trained weight its tower if that has a learning rate of its own, else "".

    Empty if no tower has one.

    Raises:
        UserError: a tower that has one trains no weight.
    """
    if not factors:
        return []
    of = [tower_of(name, family) for name in names]
    for tower in factors:
        if tower not in of:
            raise UserError(
                f"optimizer.lr_factors: expected a tower that trains, one of {sorted(set(of))}, "
                f"got {tower!r}"
            )
    return [tower if tower in factors else "" for tower in of]


def tower_of(name: str, family: Family) -> str:
    """Return the tower of a parameter from its full name in the HF model or in one with adapters.

    Raises:
        UserError: the parameter belongs to no tower.
    """
    plain = name.replace(".base_layer", "")
    for tower, prefixes in family.towers.items():
        if plain.startswith(prefixes):
            return tower
    raise UserError(f"parameter {name!r} belongs to no tower of {type(family).__name__}")
