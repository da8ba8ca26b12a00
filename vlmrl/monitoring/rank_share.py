"""What one of several ranks keeps of a model that `fsdp2` shards, and what of it is whole while it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from vlmrl.models.parts.frozen_towers import MEDIA_TOWERS
from vlmrl.policy.policy import Policy
from vlmrl.policy.trainable import decoder_layer_of, tower_of

__all__ = ["RankShare", "Spread", "as_gathered", "rank_share"]


@dataclass(frozen=True, slots=True)
class Spread:
    """How a run is spread over processes: the default is a process by itself."""

    world: int = 1
    """Processes that train; they share the prompts."""
    shards: int = 1
    """Processes over which `fsdp2` shards the weights; 1: each has all of them."""
    capacity: int | None = None
    """Bytes of each process's device; None: those of the device here."""


@dataclass(frozen=True, slots=True)
class RankShare:
    """Bytes of a rank's weights."""

    weights: int
    """Kept all the time: its slices, and what no rank shards."""
    trained: int
    """Those among them that train; their gradients are as large."""
    gathered: int
    """Whole at a time in an update: what is in no layer, with gradients; two layers; a layer's gradients."""
    whole: int
    """The whole model as engine `hf` gathers it to generate; 0 where a rank has it anyway."""


def rank_share(policy: Policy, shards: int) -> RankShare:
    """Return what the first of `shards` ranks keeps of the policy, which is not sharded here."""
    named = dict(policy.base.named_parameters())
    sizes = {name: size_of(p) for name, p in named.items()}
    trains = [name for name, p in named.items() if p.requires_grad]
    if shards == 1:
        return RankShare(sum(sizes.values()), sum(sizes[name] for name in trains), 0, 0)
    frozen = policy.frozen_towers is not None
    left = {n for n in named if frozen and tower_of(n, policy.family) in MEDIA_TOWERS}

    def slice_of(name: str) -> int:
        rows = max(1, len(named[name])) if named[name].ndim else 1
        return sizes[name] if name in left else sizes[name] * -(-rows // shards) // rows

    low = policy.config.dtype == "bfloat16"
    layers: dict[str, list[str]] = {}
    for name in named.keys() - left:
        if layer := decoder_layer_of(name, policy.family):
            layers.setdefault(layer, []).append(name)
    inside = {name for names in layers.values() for name in names}
    loose = named.keys() - left - inside
    gathered_sizes = {n: 2 * named[n].numel() if low else sizes[n] for n in inside}
    largest = max(sum(gathered_sizes[n] for n in names) for names in layers.values())
    # Gradients of a layer, as they are computed and in float32 to be summed.
    gradients = max(
        sum(gathered_sizes[n] + 4 * named[n].numel() for n in names if n in trains)
        for names in layers.values()
    )
    head = policy.family.head(policy.base).weight  # its gradient is among the logits'
    own = {n for n in loose & {*trains} if named[n] is not head}
    outside = sum(sizes[n] for n in loose) + sum(sizes[n] for n in own)
    return RankShare(
        weights=sum(map(slice_of, named)),
        trained=sum(map(slice_of, trains)),
        gathered=outside + 2 * largest + gradients,
        whole=sum(sizes[n] for n in loose) + sum(gathered_sizes.values()),
    )


@contextlib.contextmanager
def as_gathered(policy: Policy) -> Iterator[None]:
    """Keep the layers' weights in bfloat16 inside, as `fsdp2` gathers them: autocast makes no copies."""
    if policy.config.dtype != "bfloat16":
        yield
        return
    named = policy.base.named_parameters()
    kept = [
        (p, p.data)
        for name, p in named
        if p.requires_grad and decoder_layer_of(name, policy.family)
    ]
    for parameter, data in kept:
        parameter.data = data.to(torch.bfloat16)
    try:
        yield
    finally:
        for parameter, data in kept:
            parameter.data = data


def size_of(tensor: torch.Tensor) -> int:
    """Return the bytes of a weight, with the scales of a 4-bit one."""
    scales = getattr(tensor, "quant_state", None)
    return tensor.nbytes + (scales.absmax.nbytes if scales else 0)
