"""The result of a run: the content of summary.json."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from vlmrl.training.trainer import Trainer

__all__ = ["summarise"]


def summarise(trainer: Trainer) -> dict[str, Any]:
    """Return evaluations (first, last, best), seconds per phase, peak memory, dropped rows and faults."""
    evaluations = trainer.evaluations
    best = trainer.best
    faults = {
        f"{source}/{label}": counts["faults"]
        for (source, label), counts in trainer.scorer.counts.items()
    }
    return {
        "steps": trainer.done,
        "metric": trainer.config.evaluation.metric if trainer.config.evaluation else None,
        "first_evaluation": evaluations[min(evaluations)] if evaluations else None,
        "last_evaluation": evaluations[max(evaluations)] if evaluations else None,
        "best_evaluation": evaluations[best] if best is not None else None,
        "wall_seconds": {k: round(v, 3) for k, v in trainer.timers.wall.items()},
        "cpu_seconds": {k: round(v, 3) for k, v in trainer.timers.cpu.items()},
        "peak_memory_mb": peak_memory_mb(),
        "parameters": sum(p.numel() for p in trainer.policy.base.parameters()),
        "dropped": dict(trainer.loader.quarantine.counts),
        "faulted": {name: count for name, count in faults.items() if count},
    }


def peak_memory_mb() -> dict[str, float]:
    """Return the peak resident memory of this process and, with CUDA, of the device, in MiB."""
    peak = {"process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    if torch.cuda.is_available():
        peak["device"] = torch.cuda.max_memory_allocated() / 2**20
    return peak
