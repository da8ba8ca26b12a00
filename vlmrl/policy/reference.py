"""The reference: the policy at the beginning of RL, kept frozen next to it and in a file."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from vlmrl.policy.fsdp import Sharded
from vlmrl.system import distributed


class Reference:
    """A frozen copy of the current weights of `base`, or of those in `file` if it exists.

    For a sharded model these are this rank's slices. They change places with the policy's while the
    reference runs: there is one model, and its reference is sharded in the same way.
    """

    def __init__(self, base: Any, sharded: Sharded | None, file: Path) -> None:
        self._base, self._sharded = base, sharded
        exists = distributed.from_main(file.is_file())
        if sharded is not None:
            state = safetensors.torch.load_file(file) if exists else sharded.state()
            if not exists and distributed.is_main():
                _write(file, lambda part: safetensors.torch.save_file(_drop_tied(state), part))
            self._slices = sharded.slices()
            if exists:
                with sharded.exchanged(self._slices):
                    sharded.load(state)
            return
        self._model = copy.deepcopy(base).eval().requires_grad_(False)
        if exists:
            safetensors.torch.load_model(self._model, file)
        elif distributed.is_main():
            _write(file, lambda part: safetensors.torch.save_model(self._model, part))

    @contextlib.contextmanager
    def model(self) -> Iterator[Any]:
        """Yield the reference model."""
        if self._sharded is None:
            yield self._model
            return
        with self._sharded.exchanged(self._slices):
            yield self._base


def _write(file: Path, write: Callable[[str], None]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    write(str(part))
    part.replace(file)


def _drop_tied(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Keep only the first name of tied weights."""
    first = {id(value): name for name, value in reversed(list(state.items()))}
    return {name: value for name, value in state.items() if first[id(value)] == name}
