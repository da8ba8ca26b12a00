"""Matrix products of a CPU by oneDNN, which torch has beside the library that it uses for float32.

MKL, which torch's x86 builds use, leaves AVX-512 alone on a CPU that is not Intel's; oneDNN does not.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import DispatchKeySet, Tensor

from vlmrl.errors import UserError

LEAST = 2**21
"""Multiplications of a product from which on oneDNN takes it: for a smaller one, asking takes too long."""

CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""Variables that bound what oneDNN, and torch around it, keep; read at the first product."""
CAPACITY = 64
"""Shapes of which code is kept. Lengths differ from step to step, so of 1,024 most are not met again."""


@contextmanager
def by_onednn() -> Iterator[None]:
    """Let oneDNN make this process's large float32 products on the CPU, forward and backward.

    Raises:
        UserError: torch was built without oneDNN.
    """
    if not torch.backends.mkldnn.is_available():  # its name before it was oneDNN
        raise UserError(
            "run.cpu_products: expected torch for this build of torch, which lacks oneDNN"
        )
    for variable in CACHES:
        os.environ.setdefault(variable, str(CAPACITY))
    multiply = torch.ops.mkldnn._linear_pointwise.default
    own_mm, own_addmm = (torch.library.get_kernel(f"aten::{n}", "CPU") for n in ("mm", "addmm"))

    def mm(keys: DispatchKeySet, a: Tensor, b: Tensor) -> Tensor:
        if _is_large(a, b):
            return multiply(_dense(a), _dense(b.t()), None, "none", [], "")
        return own_mm.call_boxed(keys, a, b)

    def addmm(keys: DispatchKeySet, bias: Tensor, a: Tensor, b: Tensor, **scales: Any) -> Tensor:
        if _is_large(a, b) and bias.shape == b.shape[1:] and set(scales.values()) <= {1}:
            return multiply(_dense(a), _dense(b.t()), bias.contiguous(), "none", [], "")
        return own_addmm.call_boxed(keys, bias, a, b, **scales)

    kernels = torch.library.Library("aten", "IMPL")
    # torch warns of kernels that replace others.
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        kernels.impl("mm", mm, "CPU", with_keyset=True)
        kernels.impl("addmm", addmm, "CPU", with_keyset=True)
    try:
        yield
    finally:
        del kernels  # torch's own are back


def _is_large(a: Tensor, b: Tensor) -> bool:
    """Return whether oneDNN takes the product of `a` [M, K] and `b` [K, N]."""
    return a.dtype is b.dtype is torch.float32 and a.shape[0] * b.numel() >= LEAST


def _dense(matrix: Tensor) -> Tensor:
    """Return a matrix whose rows or columns lie one after another."""
    return matrix if matrix.is_contiguous() or matrix.t().is_contiguous() else matrix.contiguous()
