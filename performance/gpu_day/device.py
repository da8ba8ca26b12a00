"""Seconds and bytes of work on the device: CUDA events and the allocator, or CPU time and the profiler.

Out of memory is a result: `attempt` returns None for it, with the memory freed.
"""

from __future__ import annotations

import gc
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

import torch
from torch.profiler import ProfilerActivity, profile

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
GIB = 2**30
PACKAGES = ("torch", "transformers", "peft", "trl", "bitsandbytes", "vllm")

PEAKS = {
    "NVIDIA H200": (989.4, "NVIDIA H200 data sheet, SXM: 1,979 with sparsity, halved"),
    "NVIDIA H100 80GB HBM3": (989.4, "NVIDIA H100 data sheet, SXM: 1,979 with sparsity, halved"),
    "NVIDIA H100 NVL": (835.5, "NVIDIA H100 data sheet, NVL: 1,671 with sparsity, halved"),
    "NVIDIA H100 PCIe": (756.0, "NVIDIA H100 data sheet, PCIe: 1,513 with sparsity, halved"),
    "NVIDIA A100-SXM4-80GB": (312.0, "NVIDIA A100 data sheet: 312 without sparsity"),
    "NVIDIA A100-SXM4-40GB": (312.0, "NVIDIA A100 data sheet: 312 without sparsity"),
    "NVIDIA A100 80GB PCIe": (312.0, "NVIDIA A100 data sheet: 312 without sparsity"),
    "NVIDIA A100-PCIE-40GB": (312.0, "NVIDIA A100 data sheet: 312 without sparsity"),
    "NVIDIA L40S": (362.05, "NVIDIA L40S data sheet: 362.05 without sparsity"),
}
"""Cards by the name that torch gives them: published dense bfloat16 TFLOP/s, and who says so."""

T = TypeVar("T")


@dataclass(frozen=True)
class Measured:
    """What repeats of some work took."""

    seconds: float
    """Median; of the device on a GPU, of the CPU without one."""
    spread: float
    """(longest - shortest) / median."""
    peak: int
    """Bytes that were allocated at once at most; without a GPU, beyond those at the start."""


def measure(work: Callable[[], object], repeats: int) -> Measured:
    """Run the work once to warm up, then `repeats` times."""
    if ON_GPU:
        work()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        times = [_device_seconds(work) for _ in range(repeats)]
        peak = torch.cuda.max_memory_allocated()
    else:
        peak = allocated(work)
        times = [_cpu_seconds(work) for _ in range(repeats)]
    median = statistics.median(times)
    return Measured(median, (max(times) - min(times)) / median, peak)


def _device_seconds(work: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    gc.collect()
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000


def _cpu_seconds(work: Callable[[], object]) -> float:
    gc.collect()
    start = time.process_time()
    work()
    return time.process_time() - start


def allocated(work: Callable[[], object]) -> int:
    """Run the work; return the most bytes that torch's CPU allocator gave out beyond those at the start."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
    assert seen.profiler is not None and seen.profiler.kineto_results is not None
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


def attempt(work: Callable[[], T]) -> T | None:
    """Return what the work returns, or None where it is out of memory."""
    try:
        return work()
    except torch.OutOfMemoryError:
        pass  # only outside of this block are its frames gone, with the tensors that they hold
    release()
    return None


def release() -> None:
    """Give unused memory back."""
    gc.collect()
    if ON_GPU:
        torch.cuda.empty_cache()


def peak_flops() -> float | None:
    """Return the card's published operations a second in bfloat16; None for a card not in PEAKS."""
    known = PEAKS.get(torch.cuda.get_device_name()) if ON_GPU else None
    return None if known is None else known[0] * 1e12


# --------------------------------------------------------------------------------------- its name


def describe() -> dict[str, str]:
    """Name the machine, the versions and the commit."""
    found = {"device": platform.processor() or platform.machine() or "CPU"}
    if ON_GPU:
        card = torch.cuda.get_device_name()
        memory = torch.cuda.get_device_properties(DEVICE).total_memory
        peak, source = PEAKS.get(card, (None, ""))
        found["device"] = f"{card}, {memory / GIB:.0f} GiB"
        found["driver"] = said(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        )
        found["CUDA"] = str(torch.version.cuda)
        found["published bf16 TFLOP/s"] = f"{peak:g} ({source})" if peak else "unknown: no MFU"
    found["CPU cores"] = str(os.cpu_count())
    found["Python"] = platform.python_version()
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    folder = str(Path(__file__).parent)
    found["commit"] = said(["git", "-C", folder, "describe", "--always", "--dirty"])
    return found


def said(command: list[str]) -> str:
    """Return what a command prints, or "unknown" where it cannot run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() or "unknown"
