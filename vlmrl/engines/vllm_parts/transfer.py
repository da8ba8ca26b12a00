"""Send weights from the trainer to a server: through a file in shared memory, tcp, nccl or ipc.

Each is a vLLM weight transfer back-end; its other half is in `worker.py` (file, tcp) or in vLLM
(nccl and ipc, for trainers with CUDA).
"""

from __future__ import annotations

import dataclasses
import logging
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, Protocol

import torch

from vlmrl.engines.vllm_parts import stream
from vlmrl.engines.vllm_parts.held_weights import HeldWeights
from vlmrl.engines.vllm_parts.requests import EngineFault
from vlmrl.engines.vllm_parts.server import Server, ask_all
from vlmrl.errors import UserError

log = logging.getLogger(__name__)

Name = Literal["file", "tcp", "nccl", "ipc"]


class Transfer(Protocol):
    """A way to send the weights that are held, at a sync or to servers that are started again."""

    backend: str
    """Its name in vLLM's weight transfer config."""

    def open(self, server: Server) -> None:
        """Get a newly started server ready to receive."""

    def send(self, servers: Sequence[Server]) -> dict[Server, EngineFault]:
        """Give servers the weights (start, update, finish); return the faults by server."""

    def close(self) -> None:
        """Free everything."""


def transfer(name: Name, held: HeldWeights, address: str, timeout: float) -> Transfer:
    """Return the transfer of this name; servers elsewhere find us at `address`.

    Raises:
        UserError: nccl or ipc without CUDA.
    """
    if name == "file":
        return FileTransfer(held)
    if name == "tcp":
        return TcpTransfer(held, address, timeout)
    if not torch.cuda.is_available():
        raise UserError(f"engine option transfer: {name!r} needs CUDA; use 'file' or 'tcp'")
    return CudaTransfer(name, held, address)


class FileTransfer:
    """The held files themselves, which both sides can read; trainer and servers share the machine."""

    backend = "vlmrl"

    def __init__(self, held: HeldWeights) -> None:
        self._held = held

    def open(self, server: Server) -> None:
        """Make the call that vLLM expects; a file needs no preparation."""
        server.sync("/init_weight_transfer_engine", {"init_info": {}})

    def send(self, servers: Sequence[Server]) -> dict[Server, EngineFault]:
        """Name the files to the servers."""
        named = {"paths": [str(file) for file in self._held.files], "tied": self._held.tied}

        def send_to(server: Server) -> None:
            server.sync("/start_weight_update")
            server.sync("/update_weights", {"update_info": named})
            server.sync("/finish_weight_update")

        return ask_all(send_to, servers)

    def close(self) -> None:
        """Do nothing."""


class TcpTransfer:
    """Sent over the network, see `stream`: once, however many servers there are and wherever they are."""

    backend = "vlmrl"

    def __init__(self, held: HeldWeights, address: str, timeout: float) -> None:
        self._held, self._address, self._timeout = held, address, timeout
        self._listed: dict[str, Any] = {}
        self._listed_number = -1
        self._workers: dict[Server, int] = {}

    def open(self, server: Server) -> None:
        """Make the call that vLLM expects; every update has a meeting of its own."""
        self._workers[server] = _world_size(server, self._timeout)
        server.sync("/init_weight_transfer_engine", {"init_info": {}})

    def send(self, servers: Sequence[Server]) -> dict[Server, EngineFault]:
        """Tell the servers what comes, and send it through all of their workers."""
        faults = ask_all(lambda server: server.sync("/start_weight_update"), servers)
        faults |= self._stream([server for server in servers if server not in faults])
        rest = [server for server in servers if server not in faults]
        return faults | ask_all(lambda server: server.sync("/finish_weight_update"), rest)

    def _stream(self, servers: Sequence[Server]) -> dict[Server, EngineFault]:
        over: set[int] = set()
        listed = self._list()
        with (
            _accepting(self._address, self._timeout) as (listener, meeting),
            ThreadPoolExecutor(1) as pool,
        ):

            def update(server: Server) -> None:
                number = servers.index(server)
                own = dataclasses.asdict(dataclasses.replace(meeting, server=number))
                try:
                    server.sync("/update_weights", {"update_info": {"meeting": own, **listed}})
                finally:
                    over.add(number)

            workers = [self._workers[server] for server in servers]
            weights = (tensor for _, tensor in self._held.tensors())
            sent = pool.submit(stream.send, listener, meeting, workers, over, weights)
            faults = ask_all(update, servers)
            if (error := sent.exception()) is None:
                return faults
            if not isinstance(error, OSError):
                raise error
            log.warning("weights by tcp: %s", error)  # who went without its weights has said so
            return faults

    def close(self) -> None:
        """Do nothing."""

    def _list(self) -> dict[str, Any]:
        """Return what a worker is told of the held weights before they come."""
        if self._listed_number != self._held.number:
            kinds = self._held.kinds.values()
            with ThreadPoolExecutor() as pool:  # hashing leaves Python's lock
                digests = pool.map(lambda held: stream.digest_of(held[1]), self._held.tensors())
            self._listed = {
                "names": list(self._held.kinds),
                "dtypes": [str(dtype).removeprefix("torch.") for dtype, _ in kinds],
                "shapes": [list(shape) for _, shape in kinds],
                "digests": list(digests),
                "tied": self._held.tied,
            }
            self._listed_number = self._held.number
        return self._listed


@contextmanager
def _faults_of(server: Server, way: str) -> Iterator[None]:
    """Turn the error of torch or vLLM about a server that is gone or silent into an EngineFault."""
    try:
        yield
    except RuntimeError as error:
        raise EngineFault(f"sync: {server} by {way}: {error}") from error


class CudaTransfer:
    """vLLM's own back-ends between GPUs; written after vLLM's source, never run."""

    def __init__(self, name: Literal["nccl", "ipc"], held: HeldWeights, address: str) -> None:
        self.backend: str = name
        self._held, self._address = held, address
        if name == "nccl" and not address.startswith("127."):
            log.warning(
                "transfer nccl: vLLM's meeting point at %s asks for no password, and unpickles what "
                "it is sent: keep that network closed, or use transfer: tcp",
                address,
            )
        self._senders: dict[Server, Any] = {}

    def open(self, server: Server) -> None:
        """Let vLLM's trainer side meet the server's workers."""
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        if self.backend == "ipc":
            info: Any = IPCTrainerInitInfo(rank=0)
        else:
            with _accepting(self._address, 60.0) as (_, meeting):
                port = meeting.port
            world = 1 + _world_size(server, 60.0)
            info = NCCLTrainerInitInfo(self._address, port, world, rank=0)
        with _faults_of(server, self.backend):
            self._senders[server] = WeightTransferTrainerFactory.trainer_init(
                info, client=vllm_client(server), source=_source(self._held)
            )

    def send(self, servers: Sequence[Server]) -> dict[Server, EngineFault]:
        """Let vLLM do all of it, for each server by itself."""

        def send_to(server: Server) -> None:
            with _faults_of(server, self.backend):
                self._senders[server].send_weights()

        return ask_all(send_to, servers)

    def close(self) -> None:
        """Leave all groups."""
        for sender in self._senders.values():
            sender.shutdown()
        self._senders = {}


def _source(held: HeldWeights) -> Any:
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

    class Held(WeightSource):
        """The weights that are held when it is asked, on the GPU one by one."""

        def metadata(self) -> list[Any]:
            kinds = held.kinds.items()
            return [ParamMeta(name, *kind) for first, kind in kinds for name in held.names(first)]

        def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
            for first, tensor in held.tensors():
                weight = tensor.cuda()
                yield from ((name, weight) for name in held.names(first))

    return Held()


def vllm_client(server: Server) -> Any:
    """Return vLLM's client, which can write handles of ipc, with our token and time-outs."""
    from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient

    class Client(HTTPVLLMWeightSyncClient):
        """Posts through `Server`."""

        def _post(self, path: str, json: dict[str, Any] | None = None) -> None:
            server.sync(f"/{path}", json)

    return Client(server.url)


@contextmanager
def _accepting(address: str, timeout: float) -> Iterator[tuple[socket.socket, stream.Meeting]]:
    with ExitStack() as stack:
        try:
            opened = stack.enter_context(stream.accepting(address, timeout))
        except OSError as error:
            raise UserError(
                f"engine option transfer_address: this machine cannot listen on {address!r}: {error}"
            ) from error
        yield opened


def _world_size(server: Server, timeout: float) -> int:
    return int(server.call("GET", "/get_world_size", None, timeout, "sync")["world_size"])
