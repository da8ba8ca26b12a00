"""Graders and servers of a launcher, as a rank of its run finds them."""

from __future__ import annotations

import os

from vlmrl.assemble.build import LOCAL, Pools
from vlmrl.config import Config
from vlmrl.errors import import_extra

POOLS = "VLMRL_POOLS"
"""Environment variable of a rank: Ray's address, and the namespace of the graders and servers."""


def pools_of(config: Config) -> Pools:
    """Return the pools of the run that this process is a rank of; those of this machine without any.

    Raises:
        UserError: no server has a place.
    """
    if POOLS not in os.environ:
        return LOCAL
    from vlmrl.features.launch.graders import pool_maker
    from vlmrl.features.launch.server_keeper import fleet_of

    ray = import_extra("ray", "ray")
    address, namespace = os.environ[POOLS].split()
    ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level="ERROR")
    graders, servers = config.cluster.graders, config.cluster.serve.replicas
    return Pools(
        pool_maker(graders, namespace) if graders else LOCAL.make_pool,
        fleet_of(servers, namespace) if servers else None,
    )
