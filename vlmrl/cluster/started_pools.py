"""Graders, decoders and servers: the launcher starts them once, the ranks of every attempt find them.

They outlive attempts, and end with the launcher.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vlmrl.assemble.build import LOCAL, Pools
from vlmrl.cluster.decoder_pool import maker_of
from vlmrl.cluster.grader_pool import RESOURCE, pool_maker, start_graders
from vlmrl.cluster.kept_servers import fleet_of
from vlmrl.cluster.server_keeper import start_keepers
from vlmrl.cluster.step_counts import PoolCounts, StepCounts
from vlmrl.config import Config
from vlmrl.system.extras import import_extra

__all__ = ["Started", "pools_of", "room", "start"]

POOLS = "VLMRL_POOLS"
"""Environment variable of a rank: Ray's address, and the namespace of the actors."""
ANSWER_S = 3.0
"""Seconds within which a keeper answers at the end; one without a place never does."""
END_S = 15.0
"""Seconds that servers have to end."""


@dataclass(frozen=True)
class Started:
    """What was started, as long as this object is there."""

    variables: Mapping[str, str] = field(default_factory=dict)
    """By which ranks find it."""
    actors: tuple[Any, ...] = ()
    keepers: tuple[Any, ...] = ()

    def close(self, ray: Any) -> None:
        """Let servers end, and their folders with them; Ray ends what does not answer."""
        asked = {keeper.pid.remote(): keeper for keeper in self.keepers}
        if not asked:
            return
        there, _ = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_S)
        if there:
            ended = [asked[answer].close.remote() for answer in there]
            ray.wait(ended, num_returns=len(ended), timeout=END_S)


def room(config: Config) -> dict[str, float]:
    """Return what the graders and decoders of a config take of all nodes, by the name of the resource."""
    cluster = config.cluster
    taken = float(cluster.graders * config.scoring.workers + cluster.decoders * config.data.workers)
    return {RESOURCE: taken} if taken else {}


def start(ray: Any, config: Config, say: Callable[[str], None]) -> Started:
    """Ask for what a config has beside the ranks, and `say` so if the cluster has no room for all of it."""
    cluster = config.cluster
    if not cluster.graders and not cluster.decoders and not cluster.serve.replicas:
        return Started()
    gpus = float(cluster.serve.replicas * cluster.serve.gpus)
    there = ray.available_resources()
    for name, taken in {**room(config), "GPU": gpus}.items():
        if (free := there.get(name, 0.0)) < taken:
            say(
                f"graders, decoders and servers take {name} {taken:g}, and {free:g} are free: some start "
                "when a node with room joins"
            )
    namespace = f"vlmrl-{secrets.token_hex(8)}"
    graders = start_graders(cluster.graders, config.scoring.workers, namespace)
    decoders = start_graders(cluster.decoders, config.data.workers, namespace, "decoder")
    servers = start_keepers(cluster.serve.replicas, cluster.serve.gpus, namespace)
    address = ray.get_runtime_context().gcs_address
    return Started({POOLS: f"{address} {namespace}"}, (*graders, *decoders), tuple(servers))


def pools_of(config: Config) -> Pools:
    """Return the pools of the run that this process is a rank of; those of this machine without any.

    Raises:
        UserError: no server has a place.
    """
    if POOLS not in os.environ:
        return LOCAL
    ray = import_extra("ray", "ray")
    address, namespace = os.environ[POOLS].split()
    ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level="ERROR")
    graders, servers = config.cluster.graders, config.cluster.serve.replicas
    judge, decode = LOCAL.make_pool, LOCAL.make_decoders
    counts: dict[str, PoolCounts] = {}
    if graders:
        counts["graders"] = PoolCounts()
        judge = pool_maker(graders, namespace, "grader", counts["graders"])
    if decoders := config.cluster.decoders:
        counts["decoders"] = PoolCounts()
        there = pool_maker(decoders, namespace, "decoder", counts["decoders"])
        decode = maker_of(there, decode, counts["decoders"])
    fleet = fleet_of(servers, namespace) if servers else None
    return Pools(judge, decode, fleet, StepCounts(counts, fleet).metrics)
