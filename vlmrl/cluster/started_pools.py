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
from vlmrl.cluster.server_keeper import fleet_of, start_keepers
from vlmrl.config import Config
from vlmrl.system.extras import import_extra

__all__ = ["StartedPools", "pools_of", "room", "start"]

POOLS = "VLMRL_POOLS"
"""Environment variable of a rank: Ray's address, and the namespace of the actors."""


@dataclass(frozen=True)
class StartedPools:
    """What was started, as long as this object is there."""

    variables: Mapping[str, str] = field(default_factory=dict)
    """By which ranks find it."""
    actors: tuple[Any, ...] = ()


def room(config: Config) -> dict[str, float]:
    """Return what the graders and decoders of a config take of all nodes, by the name of the resource."""
    cluster = config.cluster
    taken = float(cluster.graders * config.scoring.workers + cluster.decoders * config.data.workers)
    return {RESOURCE: taken} if taken else {}


def start(ray: Any, config: Config, say: Callable[[str], None]) -> StartedPools:
    """Ask for what a config has beside the ranks, and `say` so if the cluster has no room for all of it."""
    cluster = config.cluster
    if not cluster.graders and not cluster.decoders and not cluster.serve.replicas:
        return StartedPools()
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
    return StartedPools({POOLS: f"{address} {namespace}"}, (*graders, *decoders, *servers))


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
    decode = LOCAL.make_decoders
    if decoders := config.cluster.decoders:
        decode = maker_of(pool_maker(decoders, namespace, "decoder"), decode)
    return Pools(
        pool_maker(graders, namespace) if graders else LOCAL.make_pool,
        decode,
        fleet_of(servers, namespace) if servers else None,
    )
