"""The weights that train: frozen towers, LoRA adapters, and merging them into the weights."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch

from vlmrl.config import LoraConfig, ModelConfig
from vlmrl.config.sections.model import Tower
from vlmrl.errors import UserError
from vlmrl.models import value_head
from vlmrl.models.base import Family
from vlmrl.models.frozen_towers import MEDIA_TOWERS, FrozenTowers, KeptFeatures
from vlmrl.policy import quantization

FUSED_EXPERTS = (".experts.gate_up_proj", ".experts.down_proj")
"""Ends of the names of weights [experts, ...] that hold all experts of a layer."""

_OF_PEFT = re.compile(r"\.(?:base_layer|lora_\w+)\.")


def quantize(model: Any, family: Family, config: ModelConfig) -> None:
    """Make the language tower's linear layers 4-bit ones, in place; LoRA trains on top of them.

    Layers with rows that `quantization.BLOCK` does not divide are left as they are; models of a
    useful size have none.

    Raises:
        UserError: bitsandbytes is not installed, or most weights are experts, which are no layers.
    """
    if experts := [n for n, p in model.named_parameters() if n.endswith(FUSED_EXPERTS)]:
        raise UserError(
            f"model.quantization: {type(family).__name__} holds all experts of a layer in one weight "
            f"({experts[0]}), for which bitsandbytes has no 4-bit layer; use model.dtype: bfloat16"
        )
    dtype = torch.bfloat16 if config.dtype == "bfloat16" else torch.float32
    linear = [(n, m) for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)]
    for name, module in linear:
        if (
            _takes_adapter(name, "language", family)
            and module.in_features % quantization.BLOCK == 0
        ):
            model.set_submodule(name, quantization.nf4(module, dtype))
    model.is_loaded_in_4bit = True  # what peft asks


def require_experts(model: Any, family: Family) -> None:
    """Refuse to replay the choice of experts where there is none.

    Raises:
        UserError: the model has no experts.
    """
    if not family.routers(model):
        raise UserError(
            f"model.router_replay: a model of type {model.config.model_type!r} has no experts to choose; "
            "leave it out"
        )


def freeze(model: Any, family: Family, config: ModelConfig) -> None:
    """Freeze the config's towers, in place.

    Weights that the architecture keeps fixed (tables of positions) stay fixed.

    Raises:
        UserError: nothing is left to train.
    """
    for name, parameter in model.named_parameters():
        if config.lora is None:
            trains = parameter.requires_grad and tower_of(name, family) not in config.freeze
            parameter.requires_grad_(trains)
    if not any(p.requires_grad for p in model.parameters()):
        raise UserError(f"model.freeze: {config.freeze} leaves nothing to train")


def keep_features(towers: FrozenTowers | None, config: ModelConfig) -> None:
    """Let frozen towers keep what they find from step to step, where the config asks for it.

    Raises:
        UserError: no tower is frozen.
    """
    if not config.keep_features_gib:
        return
    if towers is None:
        raise UserError(
            "model.keep_features_gib: a vision or audio tower trains, so its features change; freeze "
            "all of them (model.freeze, or adapters on the language tower alone), or leave it out"
        )
    towers.beyond = KeptFeatures(int(config.keep_features_gib * 2**30))


def frozen_towers(model: Any, family: Family) -> FrozenTowers | None:
    """Return the model's towers of media if no weight in any of them trains, otherwise None."""
    trained = {tower_of(name, family) for name, p in model.named_parameters() if p.requires_grad}
    if trained & {*MEDIA_TOWERS} or not family.towers.keys() & {*MEDIA_TOWERS}:
        return None
    return FrozenTowers(family.towers, projects="projector" in trained)


def narrow(weight: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    """Return a parameter in the dtype in which it is kept: float32, or bfloat16 if that is frozen."""
    if not weight.is_floating_point():
        return weight
    low = config.dtype == "bfloat16" and not weight.requires_grad
    return weight.detach().to(torch.bfloat16 if low else torch.float32)


def with_lora(model: Any, family: Family, config: ModelConfig) -> Any:
    """Return the peft model around `model`, with adapters on the linear layers of the config's towers.

    The adapters are float32, whatever the layers are. Of other weights those of the towers in `lora.full`
    train, and no more.

    Raises:
        UserError: these towers have no layer that takes an adapter, or no weight that trains.
    """
    import peft

    assert config.lora is not None
    own = [
        (tower_of(name, family), parameter)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and is_kept_apart(name, family, config)
    ]
    if missing := {*config.lora.full} - {tower for tower, _ in own}:
        raise UserError(f"model.lora.full: {sorted(missing)} hold no weight that trains")
    targets = _targets(model, family, config.lora)
    ranks = {name: config.lora.ranks.get(t, config.lora.rank) for name, t in targets.items()}
    rank = next(iter(ranks.values()))
    lora = peft.LoraConfig(
        r=rank,
        rank_pattern={f"^{re.escape(n)}$": own for n, own in ranks.items() if own != rank},
        lora_alpha=config.lora.alpha,  # type: ignore[arg-type]
        lora_dropout=config.lora.dropout,
        target_modules=[*targets],
        use_rslora=config.lora.rslora,
        use_dora=config.lora.dora,
        init_lora_weights=True if config.lora.init == "kaiming" else config.lora.init,
    )
    with _as_float32([model.get_submodule(name) for name in targets]), _without_type(model.config):
        adapted = peft.get_peft_model(model, lora)
    if config.lora.dora:
        for name in targets:
            _set_lengths(model.get_submodule(name))
    for _, parameter in own:  # peft has frozen them
        parameter.requires_grad_(True)
    return adapted


@contextlib.contextmanager
def _without_type(config: Any) -> Iterator[None]:
    """Hide which model it is: peft 0.21 takes any `gate_proj` of some mixtures for their fused experts."""
    config.model_type = ""
    try:
        yield
    finally:
        del config.model_type  # the class's own is there again


@contextlib.contextmanager
def _as_float32(layers: Sequence[Any]) -> Iterator[None]:
    """Let layers of lower precision seem float32: peft would round an adapter's first values to theirs."""
    low = [
        layer.weight for layer in layers if layer.weight.dtype in (torch.bfloat16, torch.float16)
    ]
    kept = [weight.data for weight in low]
    for weight in low:
        weight.data = torch.zeros(()).expand(weight.shape)
    yield
    for weight, data in zip(low, kept, strict=True):
        weight.data = data


def merged(
    module: Any,
    weight: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    lengths: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the weight of peft's layer `module` with the matrices A and B of its adapter in it, float32.

    `lengths` [rows] are those of DoRA. Equals what peft computes, which needs them in the layer itself, not
    sharded.
    """
    whole: torch.Tensor = weight.float() + (second @ first * module.scaling["default"]).float()
    if lengths is None:
        return whole
    return whole * (lengths.float() / torch.linalg.norm(whole, dim=1))[:, None]


def _targets(model: Any, family: Family, lora: LoraConfig) -> dict[str, Tower]:
    """Return the paths of the linear layers that get an adapter, each with its tower.

    Raises:
        UserError: there are none, or an entry of `lora.targets` names none of them.
    """
    linear = [n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)]
    layers: dict[str, Tower] = {
        n: tower for tower in lora.towers for n in linear if _takes_adapter(n, tower, family)
    }
    if not layers:
        raise UserError(f"model.lora.towers: {lora.towers} hold no layer that takes an adapter")
    if not lora.targets:
        return layers
    named = {end: {n for n in layers if fnmatchcase(f".{n}", f"*.{end}")} for end in lora.targets}
    if idle := [end for end, names in named.items() if not names]:
        ends = sorted({name.rpartition(".")[2] for name in layers})
        raise UserError(
            f"model.lora.targets: expected ends of paths of layers that take an adapter, as {ends}, "
            f"got {idle}"
        )
    wanted = set().union(*named.values())
    return {name: tower for name, tower in layers.items() if name in wanted}


def _set_lengths(layer: Any) -> None:
    """Let DoRA begin with the lengths of the rows of the layer's weight: peft saw none, see `_as_float32`."""
    weight = layer.base_layer.weight
    if hasattr(weight, "quant_state"):
        weight = quantization.dequantize(weight)
    lengths = torch.linalg.norm(weight.detach().float(), dim=1)
    layer.lora_magnitude_vector["default"].weight.data = lengths


def layer_of(name: str) -> str:
    """Return the layer's name for a weight that has an adapter or is of one, else the weight's own."""
    return _OF_PEFT.split(name, maxsplit=1)[0]


def decoder_layer_of(name: str, family: Family) -> str:
    """Return the path of the language tower's layer that a weight is in; empty if it is in none."""
    for path in family.decoder_layers:
        if name.startswith(f"{path}."):
            return f"{path}.{name[len(path) + 1 :].partition('.')[0]}"
    return ""


def is_adapter(name: str) -> bool:
    """Return whether the weight of this name belongs to an adapter."""
    return ".lora_" in name


def is_kept_apart(name: str, family: Family, config: ModelConfig) -> bool:
    """Return whether a LoRA run keeps a weight beside the base model: an adapter's, or of `lora.full`."""
    if config.lora is None or is_adapter(name):
        return is_adapter(name)
    return tower_of(name, family) in config.lora.full


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
    if plain.startswith(f"{value_head.NAME}."):
        return "language"
    for tower, prefixes in family.towers.items():
        if plain.startswith(prefixes):
            return tower
    raise UserError(f"parameter {name!r} belongs to no tower of {type(family).__name__}")
