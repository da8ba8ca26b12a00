"""Published figures that a plan stands on: rates of GPUs, architectures of checkpoints, their sources."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from vlmrl.config import BuildConfig
from vlmrl.errors import UserError
from vlmrl.plugins import nearest


@dataclass(frozen=True, slots=True)
class Gpu:
    """What a GPU can do by published figures; see `rates.yaml` for units and sources."""

    name: str
    tflops: float
    hbm_tb: float
    memory_gb: float
    nvlink_gb: float
    network_gb: float
    gpus_per_node: int

    @property
    def flops(self) -> float:
        """Return the dense bfloat16 operations of a second."""
        return self.tflops * 1e12

    @property
    def memory(self) -> int:
        """Return the bytes of its memory."""
        return round(self.memory_gb * 1e9)


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What no published figure says; `rates.yaml` has the values and what they are."""

    train_mfu: float
    prefill_mfu: float
    decode_mfu: float
    hbm_share: float
    link_share: float
    decode_overhead_ms: float
    tp_latency_us: float
    tcp_gb: float
    disk_gb: float
    length_share: float
    length_sigma: float
    detect_s: float
    restart_s: float
    gpu_hours_per_failure: float

    @classmethod
    def of(cls, changes: Sequence[str] = ()) -> Assumptions:
        """Return the shipped assumptions with changes, each `NAME=VALUE`.

        Raises:
            UserError: a name is unknown, or a value is no positive number.
        """
        made = cls(**{name: float(value) for name, value in _read("rates")["assumptions"].items()})
        known = [each.name for each in fields(cls)]
        for change in changes:
            name, _, value = change.partition("=")
            if name not in known:
                raise UserError(f"--assume: there is no {name!r}{nearest(name, known)}")
            try:
                number = float(value)
            except ValueError:
                number = 0.0
            if not 0 < number < float("inf"):
                raise UserError(f"--assume {name}: expected a positive number, got {value!r}")
            made = replace(made, **{name: number})
        return made


@dataclass(frozen=True, slots=True)
class Architecture:
    """What decides the sizes of a published checkpoint: fields of the configs of its parts."""

    name: str
    family: str
    parameters: int
    text: Mapping[str, Any]
    vision: Mapping[str, Any] = field(default_factory=dict)
    audio: Mapping[str, Any] = field(default_factory=dict)
    small: Mapping[str, Any] = field(default_factory=dict)
    """What it has unlike the family's small models, e.g. `shrink`, `fields` of the whole config."""

    @property
    def depths(self) -> dict[str, int]:
        """Return the number of layers of each part."""
        return {part: getattr(self, part)[key] for part, key in self._depth_keys()}

    @property
    def shortest(self) -> int:
        """Return the layers of a part that have all kinds of its layers: levels of DeepStack, then others."""
        dense = self.text.get("first_k_dense_replace", 0)
        return 3 if DEEPSTACK in self.vision else max(1 + int(dense), self.period)

    @property
    def period(self) -> int:
        """Return after how many layers of the language model their kinds repeat."""
        return int(self.text.get("full_attention_interval", 1))

    def build(self, layers: Mapping[str, int] | None = None) -> BuildConfig:
        """Return what builds a model of these sizes, its parts with `layers` layers where they say so."""
        parts = {part: dict(getattr(self, part)) for part in PARTS}
        for part, key in self._depth_keys():
            parts[part][key] = (layers or {}).get(part, parts[part][key])
            if DEEPSTACK in parts[part]:  # a short tower has its levels at its first layers
                deepest = parts[part][key] - 1
                levels = enumerate(parts[part][DEEPSTACK])
                parts[part][DEEPSTACK] = [min(at, deepest - 2 + n) for n, at in levels]
        if layers and TAKING in parts["text"]:  # a short model has none to take from
            parts["text"][TAKING] = 0
        return BuildConfig(family=self.family, **parts)

    def _depth_keys(self) -> Iterator[tuple[str, str]]:
        for part in PARTS:
            yield from ((part, key) for key in DEPTH if key in getattr(self, part))


PARTS = ("text", "vision", "audio")
DEPTH = ("num_hidden_layers", "depth", "encoder_layers")
"""Names that families' configs have for the number of layers of a part."""
DEEPSTACK = "deepstack_visual_indexes"
TAKING = "num_kv_shared_layers"
"""How many layers, the last ones, take the keys and values of others."""


def gpus() -> list[str]:
    """Return the names of the GPUs whose rates are known."""
    return [*_read("rates")["gpus"]]


def gpu(name: str, memory_gb: float | None = None) -> Gpu:
    """Return a GPU's rates, with another memory if it is given.

    Raises:
        UserError: the GPU is unknown; the message names the nearest one.
    """
    known = _read("rates")["gpus"]
    if name not in known:
        raise UserError(
            f"--gpu: there is no {name!r}{nearest(name, [*known])} Of a card that is not listed "
            "take the one most like it, with its --memory"
        )
    return Gpu(name, **known[name] | ({"memory_gb": memory_gb} if memory_gb else {}))


def architectures() -> dict[str, Architecture]:
    """Return the published architectures by the names of their checkpoints."""
    return {name: Architecture(name, **values) for name, values in _read("architectures").items()}


def architecture_of(path: str) -> Architecture:
    """Return the architecture of a checkpoint's hub name.

    Raises:
        UserError: it is not among those that are shipped.
    """
    known = architectures()
    if path not in known:
        raise UserError(
            f"model.path: the architecture of {path!r} is not among those that are planned without "
            f"weights{nearest(path, [*known])}; known: {', '.join(known)}"
        )
    return known[path]


@functools.cache
def _read(name: str) -> Any:
    return yaml.safe_load(Path(__file__).with_name(f"{name}.yaml").read_text(encoding="utf-8"))
