"""The weights last synced, as the rank that sends them keeps them: on this machine, never in its own memory.

Every server gets them from there, also one that is started again later. They are files of one unit each,
in shared memory if they fit, so that whoever writes or sends them holds a unit at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import safetensors.torch
import torch
from safetensors import safe_open

from vlmrl.system.atomic_files import writing


class HeldWeights:
    """Weights under vLLM's names, replaced at every sync."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[Path, list[str]] = {}
        self.number = 0
        """Number of the last file: another one means other weights."""
        self.kinds: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
        """Dtype and shape of every weight, in the order of `tensors`."""
        self.tied: dict[str, list[str]] = {}
        """Further names of tied weights, by the name under which they are held."""

    @property
    def files(self) -> list[Path]:
        """The files, in the model's order."""
        return list(self._files)

    def replace(self, units: Iterable[Mapping[str, torch.Tensor]]) -> None:
        """Write these weights in place of the last; a server may still read those, whose names go.

        A weight that has several names in its unit is written under the first.

        Raises:
            UserError: there is no room for them.
        """
        self.clear()
        for unit in units:
            self.number += 1
            file = self._folder / f"weights-{self.number}.safetensors"
            first: dict[int, str] = {}
            for name, weight in unit.items():
                if first.setdefault(id(weight), name) != name:
                    self.tied.setdefault(first[id(weight)], []).append(name)
            named = {name: unit[name].detach().to("cpu").contiguous() for name in first.values()}
            with writing(file):
                safetensors.torch.save_file(named, file)
            self._files[file] = list(named)
            self.kinds |= {name: (w.dtype, tuple(w.shape)) for name, w in named.items()}
            del unit, named  # before the next one is gathered

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the weights with their names, once each; they are read as they are used."""
        for file, names in self._files.items():
            with safe_open(file, framework="pt") as opened:
                for name in names:
                    yield name, opened.get_tensor(name)

    def names(self, first: str) -> list[str]:
        """Return all names of a weight, by the one under which it is held."""
        return [first, *self.tied.get(first, ())]

    def clear(self) -> None:
        """Remove the files."""
        for file in self._files:
            file.unlink(missing_ok=True)
        self._files, self.kinds, self.tied = {}, {}, {}
