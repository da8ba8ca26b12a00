"""Ray as the host of many machines: join its cluster, and reserve places on its nodes.

Ray places processes, notices their deaths and carries the calls of graders; weights never go through it. It
is imported when one of these functions is called, and by nothing else.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from vlmrl.errors import UserError, import_extra

LOOPBACK = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"
"""Address of a Ray that is started here: in place of 127.0.0.1 Ray would take that of the network."""
STORE_BYTES = 100 * 2**20
"""Shared memory of a Ray that is started here: almost nothing is sent through it."""
MODE = "RAY_AUTH_MODE"
"""Environment variable: whether Ray asks for a token, and gives its own."""
WAIT_S = 2.0
SAY_S = 30.0
"""Seconds that places are waited for before a look is taken; and between two lines about it."""
NAMED = 8
"""Nodes that a line names at most."""

Node = Mapping[str, Any]
"""A node as `ray.nodes` lists it."""
Bundle = Mapping[str, float]
"""Resources by name that one node has to have at once."""


@contextmanager
def connected(address: str | None, processes: int, resources: Mapping[str, float]) -> Iterator[Any]:
    """Inside, this process is a driver of the Ray cluster at `address`; gives the module `ray`.

    Without an address, Ray is started on this machine, on its loopback, and ends with this process; it
    has a place for each of `processes` if it places them by CPU, and these `resources` of one's own naming.

    Raises:
        MissingExtra: Ray is not installed.
        UserError: there is no cluster at the address, or it has another version of Ray or Python.
    """
    ray = import_extra("ray", "ray")
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # or it reports to its makers
        own = {
            "num_cpus": processes,
            "resources": dict(resources),
            "object_store_memory": STORE_BYTES,
            "include_dashboard": False,
        }
        ray.init(address="local", _node_ip_address=LOOPBACK, **own, **quiet)
    else:
        try:
            ray.init(address=address, **quiet)
        except (ConnectionError, RuntimeError, ValueError) as error:
            words = " ".join(str(error).split())
            token = "" if os.environ.get(MODE) else f" (if it asks for a token, set {MODE}=token)"
            raise UserError(
                f"cluster.address: no Ray cluster at {address}: {words}{token}"
            ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def bundle_of(nodes: Sequence[Node], processes: int) -> dict[str, float]:
    """Return what a node needs for as many processes: a CPU each, and a GPU if any node has GPUs."""
    by_gpu = any(node["Alive"] and node["Resources"].get("GPU", 0) for node in nodes)
    return {"CPU": float(processes), **({"GPU": float(processes)} if by_gpu else {})}


@contextmanager
def reserved(
    ray: Any,
    bundle: Bundle,
    count: int,
    avoid: Collection[str],
    stop: Callable[[], bool],
    say: Callable[[str], None],
    may_grow: bool = True,
) -> Iterator[Any]:
    """Inside, `count` different nodes have `bundle` reserved; gives the placement group, None if stopped.

    Nodes whose ids are in `avoid` are not taken. While places are missing, `say` is told what is missing
    every 30 s, and `stop` is asked whether to go on.

    Raises:
        UserError: places are missing, and the cluster cannot grow.
    """
    from ray.util import placement_group, remove_placement_group

    elsewhere = [{"ray.io/node-id": f"!in({','.join(sorted(avoid))})"}] * count if avoid else None
    group = placement_group(
        [dict(bundle)] * count, strategy="STRICT_SPREAD", bundle_label_selector=elsewhere
    )
    try:
        last_report = -SAY_S
        while not (ready := group.wait(WAIT_S)) and not stop():
            missing = describe_missing(ray.nodes(), bundle, count, avoid)
            if not may_grow:
                raise UserError(missing)
            if time.monotonic() - last_report >= SAY_S:
                say(f"waiting: {missing}")
                last_report = time.monotonic()
        yield group if ready else None
    finally:
        remove_placement_group(group)


def describe_missing(
    nodes: Sequence[Node], bundle: Bundle, count: int, avoid: Collection[str] = ()
) -> str:
    """Say what is needed, what there is, and which nodes lack what."""
    wanted = f"expected {count} {'node' if count == 1 else 'nodes'} with {_named(bundle)}"
    alive = [node for node in nodes if node["Alive"] and node["NodeID"] not in avoid]
    able = [
        node
        for node in alive
        if all(node["Resources"].get(name, 0) >= least for name, least in bundle.items())
    ]
    if len(able) >= count:
        return f"{wanted}, got {len(able)}, but other work holds some of that"
    lacking = [node for node in alive if node not in able]
    each = [
        f"{node['NodeManagerAddress']} has {_named(node['Resources'], bundle)}"
        for node in lacking[:NAMED]
    ]
    more = [f"{len(lacking) - NAMED} more"] if len(lacking) > NAMED else []
    return f"{wanted}, got {len(able)}" + (f" ({'; '.join([*each, *more])})" if lacking else "")


def _named(resources: Mapping[str, float], names: Collection[str] | None = None) -> str:
    return ", ".join(f"{name} {resources.get(name, 0):g}" for name in names or resources)


def own_address() -> str:
    """Return the address by which the other nodes know this one."""
    return str(import_extra("ray", "ray").util.get_node_ip_address())
