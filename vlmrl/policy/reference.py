"""The reference: the policy as RL began, frozen; a copy of its weights in memory and in a folder.

With LoRA it is a copy of the adapter and of what trains beside it: a cold start has trained them before
RL began. The folder is written once, with checksums, and every resumed run reads it.
"""

from __future__ import annotations

import contextlib
import copy
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from vlmrl.errors import UserError
from vlmrl.models.frozen_towers import install
from vlmrl.policy import weights
from vlmrl.policy.trainable import frozen_towers, is_kept_apart
from vlmrl.system import distributed
from vlmrl.system.files import NAME as CHECKSUMS
from vlmrl.system.files import find_damage, persist, write_checksums

if TYPE_CHECKING:
    from vlmrl.policy.policy import Policy

FILE = "reference.safetensors"


class Reference:
    """A frozen copy of the weights that `policy` has now.

    A model that is neither sharded nor has an adapter is copied as it is. Otherwise the copies, of
    this rank's slices or of what LoRA trains, change places with the policy's while the reference runs:
    there is one model.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._model: Any = None
        self._kept: list[torch.Tensor] = []
        if policy.sharded is None and policy.adapter is None:
            self._model = copy.deepcopy(policy.base).eval().requires_grad_(False)
            if policy.frozen_towers is not None:
                install(self._model, policy.frozen_towers)
        else:
            self._kept = [weight.clone() for weight in self._live()]

    def save(self, folder: Path) -> None:
        """Write the weights; all ranks call it.

        Raises:
            UserError: the disk is full or the folder cannot be written.
        """
        working = folder.with_name(f".{folder.name}.part")
        max_bytes = math.inf if self._policy.sharded is None else weights.MAX_BYTES

        def write() -> None:
            try:
                shutil.rmtree(working, ignore_errors=True)
                working.mkdir(parents=True)
                weights.save_parts(working / FILE, weights.gather(self._own(model)), max_bytes)
                write_checksums(working, working)
                shutil.rmtree(folder, ignore_errors=True)
                os.replace(working, folder)
            finally:
                shutil.rmtree(working, ignore_errors=True)

        with self.model() as model:
            if distributed.is_main():
                persist(folder, write, again=distributed.world() == 1)
            else:
                weights.take_part(weights.gather(self._own(model)))
        distributed.barrier()

    def load(self, folder: Path) -> None:
        """Replace the weights by those in `folder`; all ranks call it.

        Raises:
            UserError: the folder is missing or damaged, or is of another model.
        """
        missing = next((p for p in (folder, folder / CHECKSUMS) if not p.exists()), None)
        damage = f"{missing} is missing" if missing else find_damage(folder, folder)
        if damage := distributed.from_main(damage):
            raise UserError(
                f"the reference of this run cannot be read: {damage}; copy it from a backup, use "
                "algorithm.options.kl=0, or start anew"
            )
        state = weights.open_slices(folder / FILE)
        with self.model() as model:
            names = {name for unit in self._own(model) for name in unit}
            if names != state.keys():
                odd = sorted(names ^ state.keys())[0]
                raise UserError(
                    f"{folder / FILE} is of another model: {odd} is only in one of both"
                )
            if self._policy.sharded is not None:
                self._policy.sharded.load(state)
            else:
                whole = {name: value[...] for name, value in state.items()}
                model.load_state_dict(whole, strict=False)
                self._see_alone(model)

    def _see_alone(self, model: Any) -> None:
        """Give a copy its own towers if what was loaded is not what the policy's frozen ones are."""
        if self._model is None or self._policy.frozen_towers is None:
            return
        pairs = zip(self._policy.base.named_parameters(), model.parameters(), strict=True)
        frozen = [(mine, own) for (_, mine), own in pairs if not mine.requires_grad]
        if not all(torch.equal(mine, own) for mine, own in frozen):
            install(model, cast(Any, frozen_towers(model, self._policy.family)))

    def _own(self, model: Any) -> Iterator[weights.Unit]:
        """Yield the weights of `model`, or with LoRA what it trains of them."""
        for unit in weights.units_of(model, self._policy.family):
            own = {n: w for n, w in unit.items() if self._is_own(n)}
            if own:
                yield own

    def _is_own(self, name: str) -> bool:
        policy = self._policy
        return policy.adapter is None or is_kept_apart(name, policy.family, policy.config)

    @contextlib.contextmanager
    def model(self) -> Iterator[Any]:
        """Yield the reference model."""
        if self._model is not None:
            yield self._model
            return
        self._exchange()
        try:
            yield self._policy.base
        finally:
            self._exchange()

    def _exchange(self) -> None:
        for mine, other in zip(self._live(), self._kept, strict=True):
            before = mine.clone()
            mine.copy_(other)
            other.copy_(before)

    def _live(self) -> list[torch.Tensor]:
        """Return the policy's own weights of which this is a copy, detached."""
        policy = self._policy
        if policy.sharded is not None:
            live = policy.sharded.slices()
        else:
            live = {name: p.detach() for name, p in policy.base.named_parameters()}
        return [p for name, p in live.items() if self._is_own(name)]
