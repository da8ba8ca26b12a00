"""How evenly a step used the ranks: each one's own seconds by part, and how long it waited for others.

The step takes all ranks equally long, since they meet in it several times. What tells them apart is what
is left of a rank's seconds without those in which it waited in such a meeting.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import psutil
import torch

from vlmrl.system import distributed
from vlmrl.system.timers import Lap

# --------------------------------------------------------------------------------------------------
# What a process takes of its machine after a step: resident memory, and what its GPU holds and does.


def measure_use() -> dict[str, float]:
    """Return `machine/memory_mb` and, with CUDA, memory and use of the device, of all processes on it.

    The use is left out where nvidia-ml-py is missing or the driver does not tell.
    """
    use = {"machine/memory_mb": psutil.Process().memory_info().rss / 2**20}
    if not torch.cuda.is_available():
        return use
    free, total = torch.cuda.mem_get_info()
    use["machine/gpu_memory_mb"] = (total - free) / 2**20
    use["machine/gpu_memory_total_mb"] = total / 2**20
    try:
        use["machine/gpu_use"] = torch.cuda.utilization() / 100
    except Exception:  # errors of nvidia-ml-py are classes of its own; a figure must not end a run
        return use
    return use


# --------------------------------------------------------------------------------------------------
# Ranks that lag behind the others, by the seconds of their own work.


SLOW = 0.2
"""A rank lags in a step in which its work took this much longer than the median rank's, as a share."""
STEPS = 10
"""Steps in a row in which a rank lags before it is named."""
OF_MAIN = ("checkpoint", "sync")
"""Parts of which the main rank may do more than others: they are no part of a rank's work."""


@dataclass
class Machines:
    """Compares the ranks of a run, and says once of each one that holds up the others."""

    hosts: Sequence[str] = ()
    """Name of the machine of every rank."""
    say: Callable[[str], None] = print
    """Shows a line to the person who watches."""
    _lagging: int | None = field(default=None, init=False, repr=False)
    _steps: int = field(default=0, init=False, repr=False)
    _named: set[int] = field(default_factory=set, init=False, repr=False)

    def metrics(self, lap: Lap) -> dict[str, float]:
        """Return the metrics `ranks/...` of the step that took this rank `lap`; empty for one rank.

        All ranks call it, and get the same numbers.
        """
        if distributed.world() == 1:
            return {}
        own = {part: s - lap.waited.get(part, 0.0) for part, s in lap.wall.items()}
        table = distributed.gather((own, lap.waited_s / lap.whole_s))
        compared = self.compare([own for own, _ in table], [idle for _, idle in table])
        return {**compared, "ranks/told_bytes": float(lap.told_bytes)}

    def compare(
        self, own: Sequence[Mapping[str, float]], idle: Sequence[float]
    ) -> dict[str, float]:
        """Return the metrics of ranks with these own seconds by part and shares of waiting, by rank."""
        parts = sorted({part for of_rank in own for part in of_rank})
        by_part = {part: [of_rank.get(part, 0.0) for of_rank in own] for part in parts}
        work = [sum(s for part, s in of.items() if part not in OF_MAIN) for of in own]
        self._watch(work, by_part)
        spreads = {"ranks/excess": _excess(work)}
        for part, seconds in {"work": work, **by_part}.items():
            spreads |= _spread(part, seconds)
            spreads[f"ranks/{part}/slowest"] = float(seconds.index(max(seconds)))
        return spreads | _spread("idle", idle)

    def _watch(self, work: Sequence[float], by_part: Mapping[str, Sequence[float]]) -> None:
        """Name the slowest rank once it has lagged for `STEPS` steps in a row."""
        excess, slowest = _excess(work), work.index(max(work))
        lagging = slowest if excess > SLOW else None
        self._steps = self._steps + 1 if lagging == self._lagging else 1
        self._lagging = lagging
        if lagging is None or self._steps < STEPS or lagging in self._named:
            return
        self._named.add(lagging)
        gaps = {
            p: s[lagging] - statistics.median(s) for p, s in by_part.items() if p not in OF_MAIN
        }
        where = f" on {self.hosts[lagging]}" if self.hosts else ""
        self.say(
            f"rank {lagging}{where} is slow: in each of the last {STEPS} steps its work took over "
            f"{SLOW:.0%} longer than the median rank's, in the last {excess:.0%}, most of it in "
            f"{max(gaps, key=lambda part: gaps[part])}"
        )


def _excess(work: Sequence[float]) -> float:
    """Return how much longer the most of these seconds are than their median, as a share of it."""
    median = statistics.median(work)
    return max(work) / median - 1 if median > 0 else 0.0


def _spread(part: str, values: Sequence[float]) -> dict[str, float]:
    return {
        f"ranks/{part}/min": min(values),
        f"ranks/{part}/median": statistics.median(values),
        f"ranks/{part}/max": max(values),
    }
