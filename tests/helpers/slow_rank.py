"""A run of a few steps in which rank 1 is slow to score, for `test_machines`.

    torchrun --standalone --nproc-per-node 2 tests/helpers/slow_rank.py FOLDER

Every rank has a clock that only the run moves: a reading takes a millisecond, scoring on rank 1 a
second more. Whoever leaves a meeting has the latest clock of all, as with real ones.
"""

from __future__ import annotations

import socket
import sys
import time
import types
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from helpers.runs import TINY
from vlmrl.assemble import lifecycle
from vlmrl.config import load
from vlmrl.features.report.page import build_report
from vlmrl.scoring.scorer import Scorer
from vlmrl.system import distributed, timers

STEPS = 12
FEW = [f"run.steps={STEPS}", "run.save_every=5", "sft=null", "evaluation=null", "run.report=true"]
READING_S, SLOW_S = 0.001, 1.0


class Clock:
    """Seconds that pass when it is read, and when it is moved."""

    now = 0.0

    def read(self) -> float:
        self.now += READING_S
        return self.now


def use(clock: Clock) -> None:
    """Let the run's timers and the meetings of its ranks go by this clock."""
    all_gather, score = dist.all_gather, Scorer.score

    def meet(found: list[torch.Tensor], given: torch.Tensor) -> None:
        all_gather(found, given)
        clocks = [torch.zeros(1, dtype=torch.float64) for _ in found]
        all_gather(clocks, torch.tensor([clock.now], dtype=torch.float64))
        clock.now = max(c.item() for c in clocks)

    def score_slowly(*arguments: Any, **named: Any) -> Any:
        clock.now += SLOW_S * distributed.rank()
        return score(*arguments, **named)

    dist.all_gather, Scorer.score = meet, score_slowly  # type: ignore[assignment, method-assign]
    kept = {"process_time": time.process_time, "monotonic": time.monotonic}
    timers.time = types.SimpleNamespace(perf_counter=clock.read, **kept)  # type: ignore[assignment]


def main(folder: Path) -> None:
    socket.gethostname = lambda: f"node-{distributed.launched_rank()}"
    use(Clock())
    settings = load("quickstart", [*TINY, *FEW, f"run.dir={folder}"])
    lifecycle.train(settings, write_report=build_report)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
