"""Which process is which rank, and what it is told: torchrun's variables, and nothing else."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from vlmrl.system import distributed


@dataclass(frozen=True)
class Place:
    """Where a process runs: the machine's address, its GPU ("" without), and Ray's id of the node."""

    address: str
    device: str
    node: str


def order(places: Sequence[Place]) -> list[int]:
    """Return the indices of `places` by rank: by address, then by GPU, so that neighbours are near."""

    def key(index: int) -> tuple[int, int, str, int, str, int]:
        place = places[index]
        address = ipaddress.ip_address(place.address)
        number = int(place.device) if place.device.isdecimal() else 0
        return address.version, int(address), place.node, number, place.device, index

    return sorted(range(len(places)), key=key)


def variables(places: Sequence[Place], port: int, attempt: int) -> list[dict[str, str]]:
    """Return the variables of every rank, whose places are given in their order.

    Ranks at one address are one machine, also where Ray takes it for several nodes. Each sees the
    GPUs of all of them there, and its own by LOCAL_RANK, as under torchrun.
    """
    by_machine = defaultdict(list)
    for rank, place in enumerate(places):
        by_machine[place.address].append(rank)
    found = []
    for rank, place in enumerate(places):
        here = by_machine[place.address]
        told = {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(places)),
            "LOCAL_RANK": str(here.index(rank)),
            "LOCAL_WORLD_SIZE": str(len(here)),
            "MASTER_ADDR": places[0].address,
            "MASTER_PORT": str(port),
            # The store is open before the first rank is started: no port is chosen twice.
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            distributed.ATTEMPT: str(attempt),
        }
        if place.device:
            told["CUDA_VISIBLE_DEVICES"] = ",".join(places[other].device for other in here)
        found.append(told)
    return found
