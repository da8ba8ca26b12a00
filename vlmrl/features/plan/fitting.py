"""How a model trains on cards of a size: adapters or all weights, engine, strategy, by two plans at most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vlmrl.config import parse, tree
from vlmrl.features.plan import published
from vlmrl.features.plan.layouts import layout_of
from vlmrl.features.plan.planner import Planner, PromptContent, RatedLayout
from vlmrl.monitoring.memory_forecast import GIB

LARGE = 70
"""GB of a card from which the presets for 80 GB are taken, not those for 24."""
RANK = 32
"""Rank of adapters where all weights do not fit."""
ADAPTERS_LR = 1e-5
"""Their learning rate."""


@dataclass(frozen=True)
class ModelFit:
    """The keys of a config that make a model fit cards, and what was forecast of it."""

    changes: Mapping[str, Any]
    """Tree of keys to lay over the config."""
    lines: list[str]
    """What it costs, planned, and why it was chosen."""


def fit(config: Mapping[str, Any], gpus: int, memory: float, pixels: int) -> ModelFit:
    """Return how the model of a config's tree trains on `gpus` cards of `memory` GB, one image a prompt.

    All weights if the forecast has room for them, else adapters. A model that no plan knows gets what its
    preset of a machine says, and adapters on small cards.

    Raises:
        UserError: the config is not valid.
    """
    preset = f"machines/{8 if gpus > 1 else 1}x{80 if memory >= LARGE else 24}gb"
    machine = tree.read(preset)
    adapted = {"model": {"lora": {"rank": RANK}}, "optimizer": {"lr": ADAPTERS_LR}}
    adapters: dict[str, Any] = tree.merge(machine, adapted)
    path = config["model"]["path"]
    if path not in published.architectures():
        small = memory < LARGE
        how = "adapters" if small else "all weights"
        line = f"plan knows nothing about {path}: {how} and the preset {preset}, not planned"
        return ModelFit(adapters if small else machine, [line])
    kind = min(published.gpus(), key=lambda name: abs(published.gpu(name).memory_gb - memory))
    gpu = published.gpu(kind, memory)
    chosen, what = machine, "all weights"
    rated = _plan(tree.merge(config, chosen), gpu, gpus, pixels)
    if not rated.fits:
        chosen, what = adapters, "adapters"
        rated = _plan(tree.merge(config, chosen), gpu, gpus, pixels)
    share = {"engine": {"options": {"gpu_memory_utilization": rated.layout.utilization}}}
    line = _describe(rated, f"{what}, {gpus} x {kind} of {memory:g} GB")
    return ModelFit(tree.merge(chosen, share), [line])


def _plan(config: Any, gpu: published.Gpu, gpus: int, pixels: int) -> RatedLayout:
    """Return the forecast of a config's tree, with as much memory for its engine as there is beside."""
    shown = PromptContent(images=1, pixels=pixels)
    planner = Planner(parse(config), gpu, published.Assumptions.of(), shown)
    return planner.rate(planner.with_utilization(layout_of(planner.config, gpus)))


def _describe(rated: RatedLayout, what: str) -> str:
    memory = f"{rated.memory.peak / GIB:.1f} of {rated.memory.capacity / GIB:.1f} GiB of a card"
    line = f"planned, not measured: {memory}, {rated.times.step:.0f} s a step ({what})"
    if rated.fits:
        return line
    return (
        f"{line}; it does not fit: more cards, more memory, a smaller model or model.quantization"
    )
