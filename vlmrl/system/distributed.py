"""More than one process: which one this is, and the few things that processes tell each other.

`torchrun` starts the same program several times; each process is a rank. Every function here that
talks is called by all ranks, in the same order, or all of them wait. With one process none of them
does anything. What is sent is pickled, between the processes of one run and never to or from a file.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from vlmrl.errors import UserError
from vlmrl.system import processes
from vlmrl.system.timers import MEETINGS

if TYPE_CHECKING:
    import numpy as np
    import torch


ATTEMPT = "VLMRL_ATTEMPT"
"""Environment variable: the number of the attempt of `vlmrl launch` that a process belongs to, from 1."""

_T = TypeVar("_T")

_rank, _world = 0, 1
_sequence: tuple[int, Any] = (1, None)
"""How many ranks share the tokens of a micro-batch, and this rank's group of them."""
_replicas = 1
"""Into how many groups of consecutive ranks a sharded model is copied."""


def rank() -> int:
    """Return the number of this process, from 0."""
    return _rank


def world() -> int:
    """Return the number of processes."""
    return _world


def is_main() -> bool:
    """Return whether this process writes what a run has once: files, console, checkpoints."""
    return _rank == 0


def sequence_ranks() -> range:
    """Return the ranks, consecutive ones, that share the tokens of a micro-batch with this one."""
    first = _rank - _rank % _sequence[0]
    return range(first, first + _sequence[0])


def sequence_group() -> Any:
    """Return the process group of `sequence_ranks`; None if that is this rank alone."""
    return _sequence[1]


def sharding_ranks() -> range:
    """Return the ranks, consecutive ones, that hold one copy of a sharded model together with this one."""
    size = _world // _replicas
    first = _rank - _rank % size
    return range(first, first + size)


def speaks_for_sequence() -> bool:
    """Return whether what the ranks that share tokens have in common is to be counted on this one."""
    return _rank == sequence_ranks()[0]


def launched() -> bool:
    """Return whether a launcher started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def launched_rank() -> int:
    """Return the rank that the launcher gave this process, also before and after the `session`."""
    return int(os.environ.get("RANK", "0"))


def attempt() -> int:
    """Return the number of the attempt that this process belongs to; 0 without `vlmrl launch`."""
    return int(os.environ.get(ATTEMPT, "0"))


def machines_differ() -> bool:
    """Return whether there are processes on other machines."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) < _world


def outside(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without the launcher's: for a program that is no rank.

    With them torch would look for the launcher's store where that program opens its own, and vLLM would
    take Ray for its processes.
    """
    names = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", ATTEMPT, processes.PARENT}
    kinds = ("LOCAL_", "GROUP_", "ROLE_", "TORCHELASTIC_", "RAY_")
    return {k: v for k, v in environment.items() if k not in names and not k.startswith(kinds)}


@contextmanager
def session(timeout_s: float, sequence_parallel: int = 1, replicas: int = 1) -> Iterator[None]:
    """Inside, this process is one of those that `torchrun` started (alone, if it started none).

    A rank that waits longer than `timeout_s` for the others fails. After an error nothing is said
    goodbye to: the others' next call fails, and the launcher ends them. `sequence_parallel` ranks at a
    time share the tokens of a micro-batch. A sharded model has `replicas` copies.

    Raises:
        UserError: more processes on this machine than GPUs; `sequence_parallel` does not divide those
            of a machine, or `replicas` all of them.
    """
    global _rank, _world, _sequence, _replicas
    _require_divisors(sequence_parallel, replicas)
    if not launched():
        yield
        return
    import torch
    import torch.distributed as dist

    backend = "gloo"
    if torch.cuda.is_available():
        local = int(os.environ.get("LOCAL_RANK", "0"))
        if local >= torch.cuda.device_count():
            raise UserError(
                f"process {local + 1} on this machine has no GPU of its own "
                f"({torch.cuda.device_count()} are visible): lower --nproc-per-node"
            )
        torch.cuda.set_device(local)
        backend = "cpu:gloo,cuda:nccl"
    if warning := warn_of_network(os.environ):
        print(warning, file=sys.stderr)
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group(backend, timeout=timeout)
    _rank, _world = dist.get_rank(), dist.get_world_size()
    if sequence_parallel > 1:
        firsts = range(0, _world, sequence_parallel)
        groups = [dist.new_group(range(n, n + sequence_parallel), timeout=timeout) for n in firsts]
        _sequence = sequence_parallel, groups[_rank // sequence_parallel]
    _replicas = replicas
    yield
    dist.barrier()
    dist.destroy_process_group()
    _rank, _world, _sequence, _replicas = 0, 1, (1, None), 1


def warn_of_network(environment: Mapping[str, str]) -> str | None:
    """Return what to say where other machines can reach the processes; they ask for no password."""
    address = environment.get("MASTER_ADDR", "localhost")
    local = address in ("localhost", "::1") or address.startswith("127.")
    if local or environment.get("RANK", "0") != "0" or environment.get("GLOO_SOCKET_IFNAME"):
        return None
    return (
        f"warning: the processes meet at {address}, without authentication: whoever reaches that port "
        "can run code in them. Keep their network closed, and name its interface in GLOO_SOCKET_IFNAME"
    )


def _require_divisors(parts: int, replicas: int) -> None:
    number = int(os.environ.get("WORLD_SIZE", "1"))
    here = int(os.environ.get("LOCAL_WORLD_SIZE", number))
    if here % parts:
        where = "" if here == number else " on each machine"
        raise UserError(
            f"distributed.sequence_parallel: expected a divisor of the number of processes{where} "
            f"({here}), got {parts}"
        )
    if number > 1 and replicas > 1 and (number % replicas or number == replicas):
        raise UserError(
            f"distributed.replicas: expected a divisor of the number of processes ({number}) that leaves "
            f"each replica at least 2, got {replicas}"
        )


@contextmanager
def kept() -> Iterator[None]:
    """Keep the ranks' process group inside this block, where vLLM would end it together with its own."""
    if _world == 1:
        yield
        return
    import torch.distributed as dist

    destroy: Any = dist.destroy_process_group
    dist.destroy_process_group = lambda group=None: group and destroy(group)
    try:
        yield
    finally:
        dist.destroy_process_group = destroy


# ------------------------------------------------------------------------------- telling each other


def gather(value: _T) -> list[_T]:
    """Return what every rank gave, by rank."""
    if _world == 1:
        return [value]
    import numpy as np

    own = np.frombuffer(pickle.dumps(value), np.uint8)
    return [pickle.loads(of_rank.tobytes()) for (of_rank,) in gather_arrays([own])]


def gather_to_main(value: _T, group: Any = None) -> list[_T]:
    """Return what every rank gave, by rank; the others than the main rank get an empty list.

    A thread beside the main one names the `group` by which it talks.
    """
    if _world == 1:
        return [value]
    import torch.distributed as dist

    values: list[Any] | None = [None] * _world if is_main() else None
    with MEETINGS:
        dist.gather_object(value, values, group=group)
    return values or []


def gather_arrays(arrays: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
    """Return the arrays [N] of numbers that every rank gave, by rank; nothing is pickled.

    All ranks give as many, of the same types; their lengths N may differ. Lengths are exchanged first,
    then as many bytes from every rank as the one with most has.
    """
    if _world == 1:
        return [list(arrays)]
    import numpy as np

    lengths = _gather_equal(np.array([len(array) for array in arrays], np.int64))
    widths = np.array([array.itemsize for array in arrays], np.int64)
    content = b"".join(array.tobytes() for array in arrays)
    most = max(int(of_rank @ widths) for of_rank in lengths)
    by_rank = []
    shares = _gather_equal(np.frombuffer(content.ljust(most, b"\0"), np.uint8))
    for of_rank, share in zip(lengths, shares, strict=True):
        ends = np.cumsum(of_rank * widths)
        parts = zip(np.split(share[: ends[-1]], ends[:-1]), arrays, strict=True)
        by_rank.append([part.view(own.dtype) for part, own in parts])
    return by_rank


def _gather_equal(own: np.ndarray) -> list[np.ndarray]:
    """Return the arrays of all ranks, which are as long and of the same type."""
    import torch
    import torch.distributed as dist

    tensor = torch.tensor(own)
    by_rank = [torch.empty_like(tensor) for _ in range(_world)]
    with MEETINGS:
        dist.all_gather(by_rank, tensor)
    MEETINGS.told_bytes += _world * tensor.nbytes
    return [tensor.numpy() for tensor in by_rank]


def hand_over(pairs: Sequence[tuple[int, int]], own: Mapping[int, _T]) -> list[_T]:
    """Give `own[receiver]` along each pair (this rank, receiver); return what came along the others.

    All ranks name the same pairs in the same order.
    """
    import torch.distributed as dist

    came: list[Any] = []
    for giver, receiver in pairs:
        with MEETINGS:
            if giver == _rank:
                dist.send_object_list([own[receiver]], receiver)
            elif receiver == _rank:
                slot: list[Any] = [None]
                dist.recv_object_list(slot, giver)
                came += slot
    return came


def from_main(value: _T) -> _T:
    """Return what the main rank gave."""
    if _world == 1:
        return value
    import torch.distributed as dist

    slot = [value]
    with MEETINGS:
        dist.broadcast_object_list(slot)
    return slot[0]


def any_rank(flag: bool) -> bool:
    """Return whether any rank says yes."""
    return any(gather(flag))


def barrier() -> None:
    """Wait until every rank is here."""
    gather(None)


def from_turns(own: Sequence[_T], main_only: bool = False) -> list[_T]:
    """Put together again what was dealt to the ranks in turns, `[rank::world]`.

    With `main_only` the main rank alone gets it, the others nothing.
    """
    lists = gather_to_main(own) if main_only else gather(own)
    longest = max(map(len, lists), default=0)
    return [each[i] for i in range(longest) for each in lists if i < len(each)]


# ------------------------------------------------------------------------------------------ weights


def same_everywhere(tensors: Sequence[torch.Tensor]) -> None:
    """Give every rank the main rank's values, in place."""
    if _world == 1:
        return
    import torch.distributed as dist

    with MEETINGS:
        for tensor in tensors:
            dist.broadcast(tensor.detach(), 0)
