"""A rank that ended while others waited for it: they say which one, in one line.

What torch knows of it is the address of a socket. Ranks on one machine look for each other's
processes instead.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from vlmrl.errors import LostRank
from vlmrl.system import distributed

LOOK_S = 5.0
"""Seconds in which a process whose sockets are closed is gone, too."""


@contextmanager
def naming() -> Iterator[None]:
    """Inside, with several ranks, the loss of another one is a line that says which it is.

    All ranks enter it together.

    Raises:
        LostRank: another rank has ended or cannot be reached.
    """
    if distributed.world() == 1:
        yield
        return
    from torch.distributed import DistError

    own = _machine()
    places = distributed.gather((own, os.getpid()))
    neighbours = {rank: pid for rank, (place, pid) in enumerate(places) if place == own}
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, DistError) and "gloo" not in str(error):
            raise
        others = {rank: pid for rank, pid in neighbours.items() if rank != distributed.rank()}
        lost = _wait_for_dead(others) if others else []
        raise LostRank(_describe(lost, neighbours, str(error))) from error


def _machine() -> tuple[str, str]:
    """Return what processes have in common that know each other by process id."""
    try:  # containers of one machine share a kernel, but not their processes
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        return boot, os.readlink("/proc/self/ns/pid")
    except OSError:  # no Linux: processes of one launcher do
        return socket.gethostname(), str(os.getppid())


def _wait_for_dead(processes: dict[int, int]) -> list[int]:
    """Return the ranks whose processes are gone, as soon as one is; none after `LOOK_S` seconds."""
    end = time.monotonic() + LOOK_S
    while True:
        lost = [rank for rank, pid in processes.items() if _is_dead(pid)]
        if lost or time.monotonic() > end:
            return lost
        time.sleep(0.05)


def _is_dead(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _describe(lost: Sequence[int], processes: dict[int, int], said: str) -> str:
    again = "continue from the last checkpoint with resume=auto"
    if not lost:
        return f"rank {distributed.rank()} lost another rank ({said.splitlines()[0]}); {again}"
    who = " and ".join(f"rank {rank} (process {processes[rank]})" for rank in lost)
    return (
        f"{who} ended while rank {distributed.rank()} waited for it; where it gave no reason itself, it "
        f"was killed (kill -9, or no memory was left); {again}"
    )
