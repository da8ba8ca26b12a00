"""What a process takes of its machine after a step: resident memory, and what its GPU holds and does."""

from __future__ import annotations

import psutil
import torch

__all__ = ["measure_use"]


def measure_use() -> dict[str, float]:
    """Return `machine/memory_mb` and, with CUDA, memory and use of the device, of all processes on it.

    The use is left out where nvidia-ml-py is missing or the driver does not tell.
    """
    found = {"machine/memory_mb": psutil.Process().memory_info().rss / 2**20}
    if not torch.cuda.is_available():
        return found
    free, total = torch.cuda.mem_get_info()
    found["machine/gpu_memory_mb"] = (total - free) / 2**20
    found["machine/gpu_memory_total_mb"] = total / 2**20
    try:
        found["machine/gpu_use"] = torch.cuda.utilization() / 100
    except Exception:  # errors of nvidia-ml-py are classes of its own; a figure must not end a run
        return found
    return found
