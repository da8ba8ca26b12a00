"""Counts the memory of tensors that come into being."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class HeldBytes(TorchDispatchMode):
    """Inside, `held` counts the bytes of tensors made inside that still live, `peak` the most at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.held = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_storage(t)._cdata for t in tree_leaves((args, kwargs)) if _is_tensor(t)}
        out = func(*args, **(kwargs or {}))
        for tensor in filter(_is_tensor, tree_leaves(out)):
            storage = _storage(tensor)
            if storage._cdata not in given | self._known:
                self._known.add(storage._cdata)
                self.held += storage.nbytes()
                weakref.finalize(storage, self._forget, storage._cdata, storage.nbytes())
        self.peak = max(self.peak, self.held)
        return out

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.held -= size


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.untyped_storage()
