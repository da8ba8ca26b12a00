"""A gloo group next to torch's default one: the trainer (rank 0) and a server's workers."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore


def meeting_point(listener: socket.socket, world_size: int, timeout: float) -> TCPStore:
    """Return the store where the trainer waits, on the listener's address only (torch's own takes all)."""
    address, port = listener.getsockname()[:2]
    return TCPStore(
        address,
        port,
        world_size,
        is_master=True,
        timeout=timedelta(seconds=timeout),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def join(address: str, port: int, rank: int, world_size: int, timeout: float) -> Any:
    """Join the group as a worker, and return it."""
    store = TCPStore(
        address, port, world_size, timeout=timedelta(seconds=timeout), wait_for_workers=False
    )
    own = socket.create_connection((address, port))
    with own:
        interface = own.getsockname()[0]  # the address by which the trainer sees this machine
    return group(store, rank, world_size, timeout, interface)


def group(store: TCPStore, rank: int, world_size: int, timeout: float, address: str) -> Any:
    """Return the group when all have joined. `address` is of the interface to use."""
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [ProcessGroupGloo.create_device(hostname=address)]
    options._timeout = timedelta(seconds=timeout)
    return ProcessGroupGloo(PrefixStore("vlmrl", store), rank, world_size, options)


def broadcast(gloo: Any, tensor: torch.Tensor) -> None:
    """Send (rank 0) or fill (others) a contiguous CPU tensor; as bytes, gloo knows few dtypes."""
    gloo.broadcast(tensor.reshape(-1).view(torch.uint8), root=0).wait()
