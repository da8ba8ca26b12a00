"""What a step had of the graders, decoders and servers on other machines, as metrics.

Ranks count their own calls; the numbers of a step are those of all ranks together. The main rank alone
asks for servers, so it alone knows of them.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vlmrl.cluster.kept_servers import KeptServers
from vlmrl.system import distributed

__all__ = ["PoolCounts", "StepCounts"]


class PoolCounts:
    """What this rank's calls to the actors of a pool came to since the last step; any thread counts.

    Keys: `calls` with a result, `chunks` with all results and their `seconds`, calls that were `repeated`
    elsewhere or on this machine, and times that an actor was `lost`.
    """

    def __init__(self) -> None:
        self.answering = 0
        """Actors that answer, as far as this rank knows."""
        self._found: dict[str, float] = defaultdict(float)
        self._lock = threading.Lock()

    def add(self, **more: float) -> None:
        """Count more of something."""
        with self._lock:
            for name, amount in more.items():
                self._found[name] += amount

    def take(self) -> dict[str, float]:
        """Return what was counted since the last call, and how many actors answer."""
        with self._lock:
            found, self._found = self._found, defaultdict(float)
        return {**found, "answering": self.answering}


@dataclass(frozen=True)
class StepCounts:
    """The pools by name, and the servers, of which a step has metrics."""

    pools: Mapping[str, PoolCounts] = field(default_factory=dict)
    servers: KeptServers | None = None

    def metrics(self) -> dict[str, float]:
        """Return the metrics `pool/...` and, on the main rank, `servers/...`; all ranks call it."""
        found: dict[str, float] = {}
        for name, pool in self.pools.items():
            found |= pool_metrics(name, distributed.gather(pool.take()))
        if self.servers is not None and distributed.is_main():
            found |= self.servers.metrics()
        return found


def pool_metrics(name: str, shares: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the metrics of a pool from what each rank has counted.

    An actor's loss is seen by the ranks with calls to it: the rank that saw most counts.
    """
    names = ("calls", "chunks", "repeated", "seconds")
    total = {name: sum(share.get(name, 0.0) for share in shares) for name in names}
    found = {
        f"pool/{name}/calls": total["calls"],
        f"pool/{name}/chunks": total["chunks"],
        f"pool/{name}/repeated": total["repeated"],
        f"pool/{name}/lost": max(share.get("lost", 0) for share in shares),
        f"pool/{name}/answering": min(share["answering"] for share in shares),
    }
    if total["chunks"]:
        found[f"pool/{name}/seconds"] = total["seconds"] / total["chunks"]
    return {key: float(value) for key, value in found.items()}
