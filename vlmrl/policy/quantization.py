"""Features of bitsandbytes: optimizers whose state is smaller or leaves the GPU, 4-bit weights.

It is an optional extra; without it only these choices are unavailable.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from vlmrl import DISTRIBUTION
from vlmrl.errors import UserError

OPTIMIZERS = {
    "adamw_8bit": "AdamW8bit",
    "paged_adamw": "PagedAdamW",
    "paged_adamw_8bit": "PagedAdamW8bit",
}
"""Names in the config -> classes of `bitsandbytes.optim`."""


BLOCK = 64
"""Numbers of a row that share a scale; bitsandbytes 0.50 reads rows of other lengths wrongly on a CPU."""


def library(key: str) -> Any:
    """Return the module `bitsandbytes`, which the config's `key` needs.

    Raises:
        UserError: bitsandbytes is not installed.
    """
    try:
        import bitsandbytes
    except ImportError as error:
        raise UserError(
            f"{key} needs bitsandbytes: pip install '{DISTRIBUTION}[bitsandbytes]' ({error})"
        ) from error
    return bitsandbytes


def optimizer(name: str) -> type[torch.optim.Optimizer]:
    """Return the optimizer class of a name in OPTIMIZERS; it takes the arguments of `torch.optim.AdamW`."""
    return getattr(library(f"optimizer.name: {name}").optim, OPTIMIZERS[name])


def nf4(layer: torch.nn.Linear, dtype: torch.dtype) -> torch.nn.Module:
    """Return a frozen layer in place of `layer` with NormalFloat4 weights, as in QLoRA (arXiv:2305.14314).

    Scales have 8 bits; `in_features` is a multiple of BLOCK. It computes in `dtype`, and its weights
    are rounded when it is moved to a device.
    """
    nn = library("model.quantization: nf4").nn
    shape = layer.in_features, layer.out_features, layer.bias is not None
    small = nn.Linear4bit(*shape, compute_dtype=dtype, quant_type="nf4")
    small.weight = nn.Params4bit(layer.weight.data.to(dtype), False, quant_type="nf4")
    small.bias = layer.bias
    # Otherwise the first generation on some CPUs repacks the weights in place, with coarser scales.
    small.support_avx512bf16_for_cpu = False
    return small


def size_of(weight: torch.Tensor) -> int:
    """Return the bytes of a whole weight that is given whole or as a slice, of 4-bit ones dequantized."""
    packed: Any = getattr(weight, "quant_state", None)
    if packed is None:
        return weight.numel() * weight.element_size()
    return math.prod(packed.shape) * packed.dtype.itemsize


def dequantize(weights: torch.nn.Parameter) -> torch.Tensor:
    """Return the values of 4-bit weights in the dtype from which they were rounded."""
    bits: Any = weights
    functional = library("model.quantization: nf4").functional
    return functional.dequantize_4bit(bits.data, bits.quant_state)
