"""FSDP2: every rank holds a slice of each weight and gathers a layer while it runs.

With several replicas (HSDP) the ranks of each hold a whole model together and gather among themselves;
gradients are summed among them in every backward, and over the replicas once an update.

Our forwards call parts of the model directly, so a whole forward runs inside one root module, which
holds what is in no layer: embeddings, head, norms, projector. All ranks must run the same layers in
the same order; where a rank has no media for a tower, the tower's layers are gathered without being
computed. Frozen towers are whole on every rank: they run as often as a rank has media that it has not seen.

Where the weights are, with four ranks and one replica:

                    at rest, each rank       forward                       backward
    root            a quarter of the rows    gathered, stays until its     there already; sliced after it
                                             backward is done
    layer 1 ... n   a quarter of the rows    gathered when it runs,        gathered again when it runs; its
                                             sliced again behind it        gradient is summed into slices
    frozen tower    whole                    whole                         takes no part

So while a forward runs a rank holds, beside its quarter, the root and a layer or two.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from vlmrl.config import ModelConfig
from vlmrl.models.base import Family
from vlmrl.models.frozen_towers import MEDIA_TOWERS
from vlmrl.policy.trainable import narrow, tower_of
from vlmrl.system import distributed

Scored = tuple[torch.Tensor, torch.Tensor]
Work = Callable[[], Scored]


PROJECTOR = -1
"""Stands for the projector among the numbers of towers that ran."""
Place = tuple[torch.nn.Module, str]
"""A weight's module and name: inside and outside `whole` it is not the same tensor."""


class _Root(torch.nn.Module):
    """The module through which every forward goes."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[], Any]) -> Any:
        return work()


@dataclass(frozen=True)
class _Tower:
    """A part that runs only if there are media: layers, and its other trained weights."""

    layers: tuple[torch.nn.Module, ...]
    loose: tuple[Place, ...]


def build_mesh(device: torch.device) -> DeviceMesh:
    """Return the mesh of all ranks: [shards], or [replicas, shards] where there are several replicas."""
    shards = len(distributed.sharding_ranks())
    if shards == distributed.world():
        return init_device_mesh(device.type, (shards,))
    shape = distributed.world() // shards, shards
    return init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))


def slice_weights(
    model: torch.nn.Module,
    layers: Sequence[torch.nn.Module],
    config: ModelConfig,
    mesh: DeviceMesh,
    left_whole: set[torch.nn.Parameter],
) -> Any:
    """Shard all weights except `left_whole`; return the root module, whose forward is the model's."""
    mixed = MixedPrecisionPolicy()
    if config.dtype == "bfloat16":
        mixed = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    for layer in layers:
        for parameter in layer.parameters():  # those that are views of files with other axes
            parameter.data = parameter.data.contiguous()
        fully_shard(layer, mesh=mesh, reshard_after_forward=True, mp_policy=mixed)
    root = _Root(model)
    return fully_shard(root, mesh=mesh, reshard_after_forward=False, ignored_params=left_whole)


class Sharded:
    """A model whose weights are spread over all ranks, or over those of each replica.

    Gradients are summed over the ranks, not averaged: shares of a loss add up. With `dtype: bfloat16`
    layers are gathered in it; their gradients are added up in float32. What is in no layer is gathered
    as it is stored, so that the residual stream is what autocast makes it.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        family: Family,
        config: ModelConfig,
        device: torch.device,
        frozen: bool = False,
    ) -> None:
        """Shard the weights of `model`; with `frozen`, all of its towers of media are, and stay whole."""
        self.model, self._device = model, device
        mesh = build_mesh(device)
        named = model.named_parameters() if frozen else ()
        left_whole = {p for name, p in named if tower_of(name, family) in MEDIA_TOWERS}
        for parameter in left_whole:
            parameter.data = narrow(parameter, config).to(device)
        present = dict(model.named_modules())  # some checkpoints of a family lack a tower
        inside = {
            path: tuple(present[path].children())
            for path in family.decoder_layers
            if path in present
            if not frozen or tower_of(f"{path}.0.", family) == "language"
        }
        towers = {path: tower_of(f"{path}.0.", family) for path in inside}
        loose = _loose(model, family, inside.values())
        self._towers = [
            _Tower(inside[path], tuple(loose.get(tower, ())))
            for path, tower in towers.items()
            if tower != "language"
        ]
        self._projectors = loose.get("projector", [])
        units = [unit for layers in inside.values() for unit in layers]
        self._root = slice_weights(model, units, config, mesh, left_whole)
        self._units: list[Any] = [self._root, *units]
        for unit in self._units:
            unit.set_gradient_divide_factor(1.0)
            unit.set_force_sum_reduction_for_comms(True)
        # Each rank its own rows, not before: a model as it is stored is read as it is sliced.
        self._root._apply(lambda w: narrow(w, config) if isinstance(w, torch.nn.Parameter) else w)
        self._watch(_above(model, path) for path, t in towers.items() if t == "language")
        self._is_whole = True  # the first call only makes the root the root
        self._root(lambda: None)
        self._reshard()
        self._is_whole = False
        self._ran: set[int] = set()
        self._trained: set[int] = set()

    # --------------------------------------------------------------------------------- the forward

    def run(self, work: Work) -> Scored:
        """Run the forward `work`; its gradient is summed over the ranks in the backward."""
        if self._is_whole:
            return work()

        def complete() -> Scored:
            """Run the forward and add 0 in a way that gives every weight a gradient."""
            self._ran, self._nothing = set(), torch.zeros((), device=self._device)
            logprobs, entropies = work()
            nothing = self._nothing + _nothing_of(getattr(m, leaf) for m, leaf in self._projectors)
            return logprobs + nothing, entropies

        self._reshard()  # no rank may keep weights from before an update
        out = self._root(complete)
        if not torch.is_grad_enabled():
            self._reshard()
        return out

    def _watch(self, language: Iterable[torch.nn.Module]) -> None:
        """Gather towers that are left out before the next one, or the language model, runs."""
        for projector in {module for module, _ in self._projectors}:
            projector.register_forward_pre_hook(lambda *_: self._project())
        for number, tower in enumerate(self._towers):
            # Of the first layer, not of the module above: MiniCPM's runs its layers itself.
            tower.layers[0].register_forward_pre_hook(
                lambda *_, n=number: self._enter(n), prepend=True
            )
        for module in language:
            module.register_forward_pre_hook(lambda *_: self._enter(len(self._towers)))

    def _enter(self, number: int) -> None:
        if self._is_whole:
            return
        for left_out in range(number):
            if left_out in self._ran:
                continue
            tower = self._towers[left_out]
            self._ran.add(left_out)
            x = torch.zeros((), device=self._device)
            x = x + _nothing_of(getattr(module, leaf) for module, leaf in tower.loose)
            for layer in tower.layers:
                x = _without_computing(layer, x)
            self._nothing = self._nothing + x
        # One that is left out calls its layers too, without computing.
        if number < len(self._towers) and number not in self._ran:
            self._ran.add(number)
            if torch.is_grad_enabled():
                self._trained.add(number)

    def _project(self) -> None:
        if not self._is_whole and torch.is_grad_enabled():
            self._trained.add(PROJECTOR)

    # ---------------------------------------------------------------------------------- the weights

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """Make the model an ordinary one with all its weights on every rank inside this block."""
        if self._is_whole:
            yield
            return
        self._reshard()
        for unit in self._units:
            unit.unshard()
        both = ((unit._forward_pre_hooks, unit._forward_hooks) for unit in self._units)
        hooks = [(live, dict(live)) for pair in both for live in pair]
        for live, _ in hooks:
            live.clear()  # they would slice a layer again when it has run
        self._is_whole = True
        try:
            yield
        finally:
            self._is_whole = False
            for live, kept in hooks:
                live.update(kept)
            self._reshard(*self._units)

    def each_form(self) -> Iterator[torch.nn.Module]:
        """Yield the model with its weights sliced, and with those of one unit after the other gathered.

        Inside and outside `whole` a weight is not the same tensor, and each has what is set of it.
        """
        self.rest()
        yield self.model
        for unit in self._units:
            unit.unshard()
            yield self.model
            unit.reshard()

    def load(self, state: Mapping[str, Any]) -> set[str]:
        """Load whole weights in place; return the names that the model does not have.

        Of each this rank takes its rows, `value[start:stop]`: slices of a file are read no further.
        """
        known = dict(self.model.named_parameters(remove_duplicate=False))
        self.rest()
        with torch.no_grad():
            for name, value in state.items():
                if name in known:
                    sliced = isinstance(known[name], DTensor)
                    rows = rows_of(known[name]) if sliced else slice(None)
                    _local(known[name]).copy_(value[rows])
        return set(state) - set(known)

    def slices(self) -> dict[str, torch.Tensor]:
        """Return this rank's slices of all weights by name, detached: what is written there, is theirs."""
        self.rest()
        return {name: _local(p) for name, p in self.model.named_parameters()}

    def rest(self) -> None:
        """Slice what the last forward has left gathered."""
        if not self._is_whole:
            self._reshard()

    def _reshard(self, *units: Any) -> None:
        for unit in units or (self._root,):
            unit.reshard()

    # ---------------------------------------------------------------------------------- the update

    def sum_over_replicas(self, now: bool) -> None:
        """Let the next backward sum over the replicas what gradients there are, or keep each one's own sum.

        Without replicas nothing changes: every backward sums over all ranks.
        """
        for unit in self._units:
            unit.set_requires_all_reduce(now, recurse=False)

    def forget_unused(self) -> None:
        """Drop the gradients, all 0, of towers that ran on no rank since the last call."""
        ran = set().union(*distributed.gather(self._trained))
        self._trained = set()
        used = set(self._projectors) if ran else set()
        for number in ran - {PROJECTOR}:
            used |= set(self._towers[number].loose)
        unused = {pair for tower in self._towers for pair in tower.loose} | set(self._projectors)
        for module, leaf in unused - used:
            getattr(module, leaf).grad = None
        for number, tower in enumerate(self._towers):
            if number not in ran:
                for parameter in (p for layer in tower.layers for p in layer.parameters()):
                    parameter.grad = None


# ---------------------------------------------------------------------------------------- parts


def shard(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Shard a whole tensor that all ranks have as `like` is; return it as it is if `like` is whole."""
    if not isinstance(like, DTensor):
        return value
    own = value[rows_of(like)].to(like.device)
    mesh, placements = like.device_mesh, like.placements
    return DTensor.from_local(
        own, mesh, placements, run_check=False, shape=value.shape, stride=value.stride()
    )


def rows_of(sharded: torch.Tensor) -> slice:
    """Return which rows of a sharded weight this rank holds: `torch.chunk`'s share, by rank."""
    ranks = distributed.sharding_ranks()
    share = -(-len(sharded) // len(ranks))
    start = min(ranks.index(distributed.rank()) * share, len(sharded))
    return slice(start, min(start + share, len(sharded)))


def _local(parameter: torch.Tensor) -> torch.Tensor:
    whole = parameter.detach()
    return whole.to_local() if isinstance(whole, DTensor) else whole


def _above(model: torch.nn.Module, path: str) -> torch.nn.Module:
    return model.get_submodule(path.rpartition(".")[0])


def _loose(
    model: torch.nn.Module, family: Family, layers: Iterable[Sequence[torch.nn.Module]]
) -> dict[str, list[Place]]:
    """Return for each tower the places of the trained weights that are in no layer and that forwards read."""
    inside = {id(p) for some in layers for layer in some for p in layer.parameters()}
    loose: dict[str, list[Place]] = {}
    for path, module in model.named_modules():
        for leaf, parameter in module.named_parameters(recurse=False):
            name = f"{path}.{leaf}" if path else leaf
            read = parameter.requires_grad and not name.startswith(family.unread)
            if read and id(parameter) not in inside:
                tower = tower_of(name, family)
                loose.setdefault(tower, []).append((module, leaf))
    return loose


def _nothing_of(parameters: Iterator[torch.Tensor]) -> torch.Tensor | float:
    """Return 0 as a function of all parameters."""
    return sum((p.float().sum() * 0.0 for p in parameters if p.requires_grad), 0.0)


def _without_computing(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Call a layer with its hooks but only pass `x` on; its weights get gradients of 0."""
    layer.forward = lambda x: x + _nothing_of(layer.parameters())
    try:
        # Not `layer(x)`: a checkpointed layer would compute, when it runs again in the backward.
        return torch.nn.Module.__call__(layer, x)
    finally:
        del layer.forward  # the class's own is there again
