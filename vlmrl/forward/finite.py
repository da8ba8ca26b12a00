"""Numbers that are NaN or infinite: noticed in the step where they appear, in one line with a name.

A sum of squares tells: it is not finite if a number is not, or is so large that no forward could
use it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch.distributed.tensor import DTensor

from vlmrl.errors import NotFinite
from vlmrl.system import distributed


@contextlib.contextmanager
def naming(step: str) -> Iterator[None]:
    """Name the step in a `NotFinite` that is raised inside this block."""
    try:
        yield
    except NotFinite as error:
        raise NotFinite(f"{step}: {error}") from error


def norm_of(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the Euclidean norm of all tensors together, as torch does to clip gradients."""
    norm = torch.nn.utils.get_total_norm(list(tensors))
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def first_not_finite(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the name of the first tensor, on any rank, whose norm is not finite; all ranks call it.

    Where only the norm of all together is not, it is the name of the first tensor.
    """
    local = (t.to_local() if isinstance(t, DTensor) else t for t in tensors.values())
    finite = (math.isfinite(t.detach().norm().item()) for t in local)
    places = distributed.gather(next((n for n, good in enumerate(finite) if not good), None))
    return list(tensors)[min((n for n in places if n is not None), default=0)]
