"""Send weights from the trainer to a server: through a file in shared memory, tcp, nccl or ipc.

Each is a vLLM weight transfer back-end; its other half is in `worker.py` (file, tcp) or in vLLM
(nccl and ipc, for trainers with CUDA).
"""

from __future__ import annotations

import dataclasses
import logging
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

import safetensors.torch
import torch

from vlmrl.engines.vllm_parts import stream
from vlmrl.engines.vllm_parts.requests import EngineFault
from vlmrl.engines.vllm_parts.server import Server
from vlmrl.errors import UserError
from vlmrl.system.atomic_files import writing

log = logging.getLogger(__name__)

Name = Literal["file", "tcp", "nccl", "ipc"]


class Transfer(Protocol):
    """A way to send weights; holds the last ones, so that a restarted server gets the same."""

    backend: str
    """Its name in vLLM's weight transfer config."""

    def hold(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Take the weights to send from now on; the tensors may change afterwards."""

    def open(self, server: Server) -> None:
        """Get a newly started server ready to receive."""

    def send(self, server: Server) -> None:
        """Give a server the weights (start, update, finish)."""

    def close(self) -> None:
        """Free everything."""


def transfer(name: Name, folder: Path, address: str, timeout: float) -> Transfer:
    """Return the transfer of this name; `folder` is for file, `address`, where servers find us, for others.

    Raises:
        UserError: nccl or ipc without CUDA.
    """
    if name == "file":
        return FileTransfer(folder)
    if name == "tcp":
        return TcpTransfer(address, timeout)
    if not torch.cuda.is_available():
        raise UserError(f"engine option transfer: {name!r} needs CUDA; use 'file' or 'tcp'")
    return CudaTransfer(name, address)


class FileTransfer:
    """A safetensors file that both sides can read; trainer and servers share the machine."""

    backend = "vlmrl"

    def __init__(self, folder: Path) -> None:
        self._folder, self._number = folder, 0

    @property
    def _file(self) -> Path:
        return self._folder / f"weights-{self._number}.safetensors"

    def hold(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Write them to a new file; a server may still read the old one, whose name goes."""
        old = self._file
        self._number += 1
        with writing(self._file):
            safetensors.torch.save_file(_copies(weights), self._file)
        old.unlink(missing_ok=True)

    def open(self, server: Server) -> None:
        """Make the call that vLLM expects; a file needs no preparation."""
        server.sync("/init_weight_transfer_engine", {"init_info": {}})

    def send(self, server: Server) -> None:
        """Name the file to the server."""
        server.sync("/start_weight_update")
        server.sync("/update_weights", {"update_info": {"path": str(self._file)}})
        server.sync("/finish_weight_update")

    def close(self) -> None:
        """Remove the file."""
        self._file.unlink(missing_ok=True)


class TcpTransfer:
    """Sent over the network, see `stream`: servers may be elsewhere, nothing touches a disk."""

    backend = "vlmrl"

    def __init__(self, address: str, timeout: float) -> None:
        self._address, self._timeout = address, timeout
        self._weights: dict[str, torch.Tensor] = {}
        self._digests: list[str] = []
        self._workers: dict[Server, int] = {}

    def hold(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Copy them to the CPU, and compute their digests."""
        self._weights = _copies(weights)
        with ThreadPoolExecutor() as pool:  # hashing leaves Python's lock
            self._digests = list(pool.map(stream.digest_of, self._weights.values()))

    def open(self, server: Server) -> None:
        """Make the call that vLLM expects; every update has a meeting of its own."""
        self._workers[server] = _world_size(server, self._timeout)
        server.sync("/init_weight_transfer_engine", {"init_info": {}})

    def send(self, server: Server) -> None:
        """Tell the server what comes, and send it to each of its workers."""
        tensors = self._weights.values()
        with _accepting(self._address, self._timeout) as (listener, meeting):
            listed = {
                "meeting": dataclasses.asdict(meeting),
                "names": list(self._weights),
                "dtypes": [str(t.dtype).removeprefix("torch.") for t in tensors],
                "shapes": [list(t.shape) for t in tensors],
                "digests": self._digests,
            }
            server.sync("/start_weight_update")
            with ThreadPoolExecutor(1) as pool:
                received = pool.submit(server.sync, "/update_weights", {"update_info": listed})
                received.add_done_callback(lambda _: stream.stop(listener))
                try:
                    stream.send(listener, meeting, self._workers[server], tensors)
                except OSError as error:
                    received.result()  # raises if the server has said why
                    raise EngineFault(f"sync: {server} by tcp: {error}") from error
                received.result()
        server.sync("/finish_weight_update")

    def close(self) -> None:
        """Forget the weights."""
        self._weights, self._digests = {}, []


@contextmanager
def _faults_of(server: Server, way: str) -> Iterator[None]:
    """Turn the error of torch or vLLM about a server that is gone or silent into an EngineFault."""
    try:
        yield
    except RuntimeError as error:
        raise EngineFault(f"sync: {server} by {way}: {error}") from error


class CudaTransfer:
    """vLLM's own back-ends between GPUs; written after vLLM's source, never run."""

    def __init__(self, name: Literal["nccl", "ipc"], address: str) -> None:
        self.backend: str = name
        self._address = address
        if name == "nccl" and not address.startswith("127."):
            log.warning(
                "transfer nccl: vLLM's meeting point at %s asks for no password, and unpickles what "
                "it is sent: keep that network closed, or use transfer: tcp",
                address,
            )
        self._weights: Mapping[str, torch.Tensor] = {}
        self._senders: dict[Server, Any] = {}

    def hold(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Copy them on their device; the trainer's own change while a server restarts."""
        self._weights = {name: tensor.detach().clone() for name, tensor in weights.items()}

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
                info, client=vllm_client(server), source=_source(self)
            )

    def send(self, server: Server) -> None:
        """Let vLLM do all of it."""
        with _faults_of(server, self.backend):
            self._senders[server].send_weights()

    def close(self) -> None:
        """Leave all groups."""
        for sender in self._senders.values():
            sender.shutdown()
        self._senders, self._weights = {}, {}


def _source(cuda: CudaTransfer) -> Any:
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

    class Held(WeightSource):
        """The weights that the transfer holds when it is asked."""

        def metadata(self) -> list[Any]:
            return [ParamMeta(n, t.dtype, tuple(t.shape)) for n, t in cuda._weights.items()]

        def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
            return iter(cuda._weights.items())

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


def _copies(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return contiguous copies on the CPU; tied weights become two, which safetensors wants."""
    return {name: tensor.to("cpu", copy=True).contiguous() for name, tensor in weights.items()}
