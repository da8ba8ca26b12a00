"""The optimizer and its learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.utils import _pytree as pytree

from vlmrl.config import OptimizerConfig
from vlmrl.policy import quantization
from vlmrl.system import distributed

if TYPE_CHECKING:
    from vlmrl.policy.policy import Policy


# --------------------------------------------------------------------------------------------------
# The optimizer's state in a checkpoint; any number of ranks, sharded or not, reads what any wrote.
#
# Ranks that hold all of it write one `optimizer.pt`; where it is sharded every rank writes its slices
# below `optimizer/`, as safetensors (torch.distributed.checkpoint).


WHOLE, SLICES = "optimizer.pt", "optimizer"


def size(optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of an optimizer's state."""
    values = (value for state in optimizer.state.values() for value in state.values())
    return sum(v.numel() * v.element_size() for v in values if isinstance(v, torch.Tensor))


def save(folder: Path, policy: Policy) -> None:
    """Write the state of the policy's optimizer; all ranks call it."""
    if policy.sharded:
        write_slices(folder / SLICES, name_states(policy.optimizer, policy.named))
    elif distributed.is_main():
        torch.save(policy.optimizer.state_dict(), folder / WHOLE)


def stage(policy: Policy, group: object) -> Callable[[Path], None]:
    """Copy the state to the CPU; return what writes it as `save` does, on a thread.

    All ranks call both; the threads talk by `group`.
    """
    if policy.sharded:
        named = name_states(policy.optimizer, policy.named)
        copied = {n: v.clone() if v.device.type == "cpu" else v.to("cpu") for n, v in named.items()}
        return lambda folder: write_slices(folder / SLICES, copied, group)
    if not distributed.is_main():
        return lambda folder: None
    state = policy.optimizer.state_dict()
    state["state"] = pytree.tree_map_only(
        torch.Tensor, lambda t: t.to("cpu", copy=True), state["state"]
    )
    return lambda folder: torch.save(state, folder / WHOLE)


def own_slices(folder: Path) -> list[Path]:
    """Return the files below `folder` that this rank has written."""
    return sorted((folder / SLICES).glob(f"shard-{distributed.rank() + 1:05}-*"))


def restore(folder: Path, policy: Policy) -> None:
    """Load what `save` wrote; all ranks call it.

    Raises:
        ValueError: the state belongs to another model.
        UserError: it is no file of ours.
    """
    if not (folder / WHOLE).is_file():
        load_slices(folder / SLICES, policy.optimizer, policy.named)
        return
    from vlmrl.system.pickles import load_tensors  # only where a run goes on

    state = load_tensors(folder / WHOLE)
    if policy.sharded:
        from vlmrl.policy.fsdp import shard  # a plain run is not sharded

        groups = policy.optimizer.param_groups
        for number, parameter in enumerate(p for group in groups for p in group["params"]):
            own = state["state"].get(number, {})
            same = {key: value for key, value in own.items() if value.shape == parameter.shape}
            own |= {key: shard(value, parameter) for key, value in same.items()}
    policy.optimizer.load_state_dict(state)


def name_states(
    optimizer: torch.optim.Optimizer, named: Mapping[str, torch.nn.Parameter]
) -> dict[str, torch.Tensor]:
    """Return the state of an optimizer by name: `<weight>.<kind>`."""
    return {
        f"{name}.{key}": value
        for name, parameter in named.items()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def write_slices(folder: Path, state: dict[str, torch.Tensor], group: object = None) -> None:
    """Write each rank's slices of the state as safetensors that any number of ranks can read.

    What several replicas hold is written once. A thread beside the main one names its `group`.
    """
    folder.mkdir(exist_ok=True)
    if state:
        writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
        dcp.save(state, storage_writer=writer, process_group=group)


def load_slices(
    folder: Path, optimizer: torch.optim.Optimizer, named: Mapping[str, torch.nn.Parameter]
) -> None:
    """Load what `write_slices` wrote; the model may be sharded differently, or not at all.

    Raises:
        ValueError: a weight of the state is not among `named`.
    """
    entries = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    state: dict[str, torch.Tensor] = {}
    for key, entry in entries.items():
        name = key.rpartition(".")[0]
        if name not in named:
            raise ValueError(f"expected states of this model's weights, got one for {name}")
        size, like = cast(Any, entry).size, named[name].detach()
        is_slice = tuple(size) == tuple(like.shape)
        state[key] = torch.zeros_like(like) if is_slice else torch.zeros(size, device=like.device)
    alone = distributed.world() == 1
    dcp.load(state, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=alone)
    for key, value in state.items():
        name, _, kind = key.rpartition(".")
        optimizer.state[named[name]][kind] = value


# --------------------------------------------------------------------------------------------------


STATE_SIZE = {"adamw": 2.0, "adamw_8bit": 0.5, "paged_adamw": 2.0, "paged_adamw_8bit": 0.5}
"""Size of an optimizer's state relative to the float32 weights that it trains: two moments."""


def learning_rate(config: OptimizerConfig, step: int, total: int) -> float:
    """Return the lr of update `step` (from 0) of `total`: linear warm-up, then the schedule."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / (config.warmup_steps + 1)
    share = (step - config.warmup_steps) / max(1, total - config.warmup_steps)
    if config.lr_schedule == "linear":
        return config.lr * (1 - share)
    if config.lr_schedule == "cosine":
        return config.lr * 0.5 * (1 + math.cos(math.pi * share))
    return config.lr


def adamw(
    parameters: Sequence[torch.nn.Parameter],
    lr: float,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    name: str = "adamw",
    towers: Sequence[str] = (),
) -> torch.optim.Optimizer:
    """Build AdamW, or a variant of it in `quantization`; it decays matrices only, not norms or biases.

    With `towers`, one for each parameter ("" for those of no own learning rate), every tower has groups
    of its own, which say so under "tower"; `Policy.update` sets their learning rates.
    """
    of = towers or [""] * len(parameters)
    groups: list[dict[str, Any]] = []
    for tower in dict.fromkeys(sorted(of)):
        own = [p for p, its in zip(parameters, of, strict=True) if its == tower]
        label = {"tower": tower} if towers else {}
        groups += [
            {"params": [p for p in own if p.ndim > 1], "weight_decay": weight_decay, **label},
            {"params": [p for p in own if p.ndim <= 1], "weight_decay": 0.0, **label},
        ]
    if name in quantization.OPTIMIZERS:
        return quantization.optimizer(name)(groups, lr=lr, betas=betas, eps=eps)  # type: ignore[call-arg]
    return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=True)
