"""Weights from the trainer to its servers: held as files, and sent by file, tcp, nccl or ipc.

The rank that sends holds the weights last synced on this machine, never in its own memory. Every server gets
them from there, also one that is started again later. They are files of one unit each, in shared memory if
they fit, so that whoever writes or sends them holds a unit at a time.

Each way to send is a vLLM weight transfer back-end; its other half is in `worker` (file, tcp) or in vLLM
(nccl and ipc, for trainers with CUDA).

By tcp the workers of all servers stand in a chain: the trainer sends once, to the first, and each passes on
what it receives while it receives it. A worker that dies ends the update of those behind it, and of no
other. Each update has a secret and digests of its weights; both reach the workers with the server's token.
Who lacks the secret is sent nothing, and bytes that lack their digest are never loaded.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import logging
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from safetensors import safe_open

from vlmrl.engines.vllm_parts.requests import EngineFault
from vlmrl.engines.vllm_parts.server import Server, ask_all
from vlmrl.errors import UserError
from vlmrl.system.files import writing

log = logging.getLogger(__name__)

Name = Literal["file", "tcp", "nccl", "ipc"]

PROOF_S = 5.0
"""Seconds within which a new connection must prove that it is a worker."""
MAX_GUESTS = 256
"""Connections at a time that have proved nothing yet."""
LINK_S = 10.0
"""Seconds within which a worker must reach the one before it."""
LOOK_S = 0.2
"""Seconds between looks whether workers are still to come."""
SIZE = hashlib.sha256().digest_size
PART = 2**20
"""Bytes that are sent, or passed on, at a time."""
PLACE_BYTES = 256
"""Length of the message that gives a worker its place."""
HELLO = struct.Struct("!HH")
"""What a worker says: its server's number, and the port at which it listens."""
YES, NO = b"\1", b"\0"


class HeldWeights:
    """Weights under vLLM's names, replaced at every sync."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[Path, list[str]] = {}
        self.number = 0
        """Number of the last file: another one means other weights."""
        self.kinds: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
        """Dtype and shape of every weight, in the order of `tensors`."""
        self.tied: dict[str, list[str]] = {}
        """Further names of tied weights, by the name under which they are held."""

    @property
    def files(self) -> list[Path]:
        """The files, in the model's order."""
        return list(self._files)

    def replace(self, units: Iterable[Mapping[str, torch.Tensor]]) -> None:
        """Write these weights in place of the last; a server may still read those, whose names go.

        A weight that has several names in its unit is written under the first.

        Raises:
            UserError: there is no room for them.
        """
        self.clear()
        for unit in units:
            self.number += 1
            file = self._folder / f"weights-{self.number}.safetensors"
            first: dict[int, str] = {}
            for name, weight in unit.items():
                if first.setdefault(id(weight), name) != name:
                    self.tied.setdefault(first[id(weight)], []).append(name)
            named = {name: unit[name].detach().to("cpu").contiguous() for name in first.values()}
            with writing(file):
                safetensors.torch.save_file(named, file)
            self._files[file] = list(named)
            self.kinds |= {name: (w.dtype, tuple(w.shape)) for name, w in named.items()}
            del unit, named  # before the next one is gathered

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the weights with their names, once each; they are read as they are used."""
        for file, names in self._files.items():
            with safe_open(file, framework="pt") as opened:
                for name in names:
                    yield name, opened.get_tensor(name)

    def names(self, first: str) -> list[str]:
        """Return all names of a weight, by the one under which it is held."""
        return [first, *self.tied.get(first, ())]

    def clear(self) -> None:
        """Remove the files."""
        for file in self._files:
            file.unlink(missing_ok=True)
        self._files, self.kinds, self.tied = {}, {}, {}


# ------------------------------------------------------------------------------------- ways to send


class Transfer:
    """A way to send the weights that are held, at a sync or to servers that are started again."""

    backend = "vlmrl"
    """Its name in vLLM's weight transfer config."""

    def __init__(self, held: HeldWeights) -> None:
        self._held = held

    def open(self, server: Server) -> None:
        """Get a newly started server ready to receive: make the call that vLLM expects."""
        server.sync("/init_weight_transfer_engine", {"init_info": {}})

    def send(self, servers: Sequence[Server]) -> dict[Server, EngineFault]:
        """Give servers the weights (start, update, finish); return the faults by server."""
        raise TypeError(f"{type(self).__name__} must define send")

    def close(self) -> None:
        """Free everything."""


def build_transfer(name: Name, held: HeldWeights, address: str, timeout: float) -> Transfer:
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


class FileTransfer(Transfer):
    """The held files themselves, which both sides can read; trainer and servers share the machine."""

    def send(self, servers: Sequence[Server]) -> dict[Server, EngineFault]:
        """Name the files to the servers."""
        named = {"paths": [str(file) for file in self._held.files], "tied": self._held.tied}

        def send_to(server: Server) -> None:
            server.sync("/start_weight_update")
            server.sync("/update_weights", {"update_info": named})
            server.sync("/finish_weight_update")

        return ask_all(send_to, servers)


class TcpTransfer(Transfer):
    """Sent over the network, once, however many servers there are and wherever they are."""

    def __init__(self, held: HeldWeights, address: str, timeout: float) -> None:
        super().__init__(held)
        self._address, self._timeout = address, timeout
        self._listed: dict[str, Any] = {}
        self._listed_number = -1
        self._workers: dict[Server, int] = {}

    def open(self, server: Server) -> None:
        """Do so, and learn how many workers it has."""
        self._workers[server] = _world_size(server, self._timeout)
        super().open(server)

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
            accepting(self._address, self._timeout) as (listener, meeting),
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
            sent = pool.submit(send_by_tcp, listener, meeting, workers, over, weights)
            faults = ask_all(update, servers)
            if (error := sent.exception()) is None:
                return faults
            if not isinstance(error, OSError):
                raise error
            log.warning("weights by tcp: %s", error)  # who went without its weights has said so
            return faults

    def _list(self) -> dict[str, Any]:
        """Return what a worker is told of the held weights before they come."""
        if self._listed_number != self._held.number:
            kinds = self._held.kinds.values()
            with ThreadPoolExecutor() as pool:  # hashing leaves Python's lock
                digests = pool.map(lambda held: digest_of(held[1]), self._held.tensors())
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


class CudaTransfer(Transfer):
    """vLLM's own back-ends between GPUs; written after vLLM's source, never run."""

    def __init__(self, name: Literal["nccl", "ipc"], held: HeldWeights, address: str) -> None:
        super().__init__(held)
        self.backend, self._address = name, address
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
            with accepting(self._address, 60.0) as (_, meeting):
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


def _world_size(server: Server, timeout: float) -> int:
    return int(server.call("GET", "/get_world_size", None, timeout, "sync")["world_size"])


# --------------------------------------------------------------------------------------- the stream


@dataclass(frozen=True)
class Meeting:
    """Where the trainer listens during one update, and what proves that one is a worker."""

    address: str
    port: int
    secret: str
    timeout: float
    """Seconds without progress after which either side gives up."""
    server: int = 0
    """Number of the server that is told of this; its workers say it."""


def digest_of(tensor: torch.Tensor) -> str:
    """Return the SHA-256 of a contiguous CPU tensor's bytes, in hexadecimal."""
    return hashlib.sha256(_bytes_of(tensor)).hexdigest()


@contextmanager
def accepting(address: str, timeout: float) -> Iterator[tuple[socket.socket, Meeting]]:
    """Listen on this address only, with a secret made for this one update.

    Raises:
        UserError: this machine has no such address.
    """
    try:
        listener = socket.create_server((address, 0))
    except OSError as error:
        raise UserError(
            f"engine option transfer_address: this machine cannot listen on {address!r}: {error}"
        ) from error
    with listener:
        port = listener.getsockname()[1]
        yield listener, Meeting(address, port, secrets.token_hex(SIZE), timeout)


def send_by_tcp(
    listener: socket.socket,
    meeting: Meeting,
    expected: Sequence[int],
    over: Collection[int],
    tensors: Iterable[torch.Tensor],
) -> None:
    """Send contiguous CPU tensors to the first of a chain of workers, who pass them on.

    `expected[n]` workers of server n come, unless n gets into `over` meanwhile: it has answered. Others
    who connect are logged and sent nothing. A worker that cannot reach the one before it is sent them, too.

    Raises:
        OSError: a worker did not come in time, or one that is sent to went.
    """
    with ExitStack() as stack:
        members = _assemble(listener, meeting, expected, over, stack)
        roots = _link(members, meeting.timeout)
        lost: OSError | None = None
        for tensor in tensors:
            for root in [*roots]:
                try:
                    view = _bytes_of(tensor)
                    for start in range(0, len(view), PART):  # the time limit holds for each part
                        root.connection.sendall(view[start : start + PART])
                except OSError as error:  # the servers of those behind it say so, too
                    lost = error
                    roots.remove(root)
            if not roots:
                break
        if lost is not None:
            raise lost


def receive_by_tcp(
    meeting: Meeting,
    names: Sequence[str],
    dtypes: Sequence[str],
    shapes: Sequence[Sequence[int]],
    digests: Sequence[str],
) -> Generator[tuple[str, torch.Tensor], None, None]:
    """Yield the tensors of an update with their names, each when its digest has been found right.

    What comes goes on at once to the worker behind this one, which finds the digests right itself.

    Raises:
        OSError: the trainer or a worker before this one is gone.
        ValueError: a tensor is not the one that was announced; the message names it.
    """
    with ExitStack() as stack:
        position = _take_place(meeting, stack)
        for name, dtype, shape, digest in zip(names, dtypes, shapes, digests, strict=True):
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            for part in _read_parts(position.before, _bytes_of(tensor)):
                position.pass_on(part)
            if digest_of(tensor) != digest:
                raise ValueError(
                    f"weight {name!r}: the bytes that came are not those that the trainer "
                    "announced (their SHA-256 differs), so it is not loaded"
                )
            yield name, tensor


# ------------------------------------------------------------------ the stream: the trainer's side


@dataclass(frozen=True)
class _Member:
    """A worker that has proved itself, as the trainer sees it."""

    connection: socket.socket
    server: int
    address: tuple[str, int]
    """Where it listens for the worker behind it."""


def _assemble(
    listener: socket.socket,
    meeting: Meeting,
    expected: Sequence[int],
    over: Collection[int],
    stack: ExitStack,
) -> list[_Member]:
    """Return the workers that come, those of a server together; their connections close with `stack`."""
    deadline = time.monotonic() + meeting.timeout
    members: list[_Member] = []
    with closing(_proven(listener, meeting, HELLO.size)) as arrivals:
        while any(
            server not in over and count > sum(member.server == server for member in members)
            for server, count in enumerate(expected)
        ):
            if time.monotonic() > deadline:
                raise TimeoutError("timed out")
            for connection, host, hello in next(arrivals):
                server, port = HELLO.unpack(hello)
                members.append(_Member(stack.enter_context(connection), server, (host, port)))
    return sorted(members, key=lambda member: (member.server, member.address))


@dataclass
class _Guest:
    """Someone who has connected, and may yet prove that it is a worker."""

    connection: socket.socket
    host: str
    challenge: bytes
    deadline: float
    came: bytes = b""

    def read(self, meeting: Meeting, more: int) -> bool | None:
        """Read what has come; return whether it is the proof and `more` bytes, None if it is not all there.

        Never waits.
        """
        try:
            part = self.connection.recv(SIZE + more - len(self.came))
        except BlockingIOError:
            return None
        except OSError:  # it went
            return False
        self.came += part
        if len(self.came) >= SIZE and not _is_proof(meeting, self.challenge, self.came[:SIZE]):
            return False
        if len(self.came) == SIZE + more:
            return True
        return None if part else False


def _proven(
    listener: socket.socket, meeting: Meeting, more: int
) -> Generator[list[tuple[socket.socket, str, bytes]], None, None]:
    """Yield again and again who has proved to be a worker since, with the host and `more` bytes that it sent.

    Guests are heard side by side, so that one who says nothing keeps no worker waiting. One who proves
    nothing in PROOF_S is sent away; of more than MAX_GUESTS at a time, the first.
    """
    guests: dict[socket.socket, _Guest] = {}
    listener.settimeout(LOOK_S)  # who goes before it is accepted must not be waited for
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)

        def leave(guest: _Guest, refused: bool) -> None:
            del guests[guest.connection]
            selector.unregister(guest.connection)
            if refused:
                guest.connection.close()
                line = "weights: %s connected without this update's secret and is refused"
                log.warning(line, guest.host)

        try:
            while True:
                proven = []
                for key, _ in selector.select(LOOK_S):
                    if key.fileobj is listener:
                        if (guest := _welcome(listener)) is not None:
                            guests[guest.connection] = guest
                            selector.register(guest.connection, selectors.EVENT_READ, guest)
                    elif (is_worker := key.data.read(meeting, more)) is not None:
                        leave(key.data, not is_worker)
                        if is_worker:
                            key.data.connection.settimeout(PROOF_S)
                            proven.append(
                                (key.data.connection, key.data.host, key.data.came[SIZE:])
                            )
                late = [guest for guest in guests.values() if time.monotonic() > guest.deadline]
                for guest in late or [*guests.values()][: max(0, len(guests) - MAX_GUESTS)]:
                    leave(guest, refused=True)
                yield proven
        finally:
            for connection in guests:
                connection.close()


def _welcome(listener: socket.socket) -> _Guest | None:
    """Return who has connected, asked for a proof; None if it has gone again."""
    try:
        connection, (host, *_) = listener.accept()
    except (TimeoutError, ConnectionAbortedError):
        return None
    challenge = secrets.token_bytes(SIZE)
    try:
        connection.sendall(challenge)  # a new connection has room for it
        connection.setblocking(False)
    except OSError:
        connection.close()
        return None
    return _Guest(connection, host, challenge, time.monotonic() + PROOF_S)


def _is_proof(meeting: Meeting, challenge: bytes, answer: bytes) -> bool:
    return hmac.compare_digest(answer, _proof(meeting, challenge))


def _link(members: Sequence[_Member], timeout: float) -> list[_Member]:
    """Give every worker its place; return those that the trainer sends to: the first, if all can link.

    Each worker's timeout is shorter than its predecessor's, so a hung worker's neighbour times out first.
    """
    for number, member in enumerate(members):
        before = members[number - 1].address if number else None
        patience = timeout / 4 * (2 - (number + 1) / len(members))
        place = json.dumps({"before": before, "patience": patience})
        with suppress(OSError):  # it went; the next call finds out
            member.connection.sendall(place.encode().ljust(PLACE_BYTES))
    deadline = time.monotonic() + min(3 * LINK_S, timeout / 2)
    linked = [_answers_yes(member.connection, deadline) for member in members]
    for number, member in enumerate(members):
        member.connection.settimeout(timeout / 2)
        followed = linked[number + 1 :][:1] == [True]
        with suppress(OSError):
            member.connection.sendall(YES if followed else NO)
        if number and linked[number] is False:
            log.warning(
                "weights: the worker at %s cannot reach the one at %s:%d, so that the trainer sends to "
                "both: let the servers' machines reach each other",
                *(member.address[0], *members[number - 1].address),
            )
    return [member for member, yes in zip(members, linked, strict=True) if yes is False]


def _answers_yes(connection: socket.socket, deadline: float) -> bool | None:
    """Return a worker's answer; None if it is gone, or gives none by the deadline."""
    connection.settimeout(max(0.001, deadline - time.monotonic()))
    try:
        return bytes(_read(connection, bytearray(1))) == YES
    except OSError:
        return None


# ------------------------------------------------------------------- the stream: the worker's side


@dataclass
class _Place:
    """A worker's place in the chain."""

    before: socket.socket
    """Upstream socket: to the trainer, or to the worker before this one."""
    behind: socket.socket | None

    def pass_on(self, part: memoryview) -> None:
        """Send to the worker behind this one, if there is one and it has not gone."""
        if self.behind is None:
            return
        try:
            self.behind.sendall(part)
        except OSError as error:
            log.warning("weights: the worker behind this one is gone: %r", error)
            self.behind.close()
            self.behind = None


def _take_place(meeting: Meeting, stack: ExitStack) -> _Place:
    """Prove to the trainer that this is a worker, and meet the workers before and behind it."""
    address = meeting.address, meeting.port
    trainer = stack.enter_context(socket.create_connection(address, meeting.timeout))
    _prove(trainer, meeting)
    own = trainer.getsockname()[0]
    listener = stack.enter_context(socket.create_server((own, 0), family=trainer.family))
    admitted = stack.enter_context(ThreadPoolExecutor(1)).submit(_admit, listener, meeting)
    stack.callback(_stop, listener)  # or its thread would go on
    trainer.sendall(HELLO.pack(meeting.server, listener.getsockname()[1]))
    neighbours = json.loads(bytes(_read(trainer, bytearray(PLACE_BYTES))))
    before = trainer
    if neighbours["before"] is not None:
        host, port = neighbours["before"]
        with suppress(OSError):  # then the trainer sends to this worker, too
            before = stack.enter_context(_join(host, int(port), meeting))
    trainer.sendall(NO if before is trainer else YES)
    if bytes(_read(trainer, bytearray(1))) != YES:
        return _Place(before, None)
    behind = stack.enter_context(admitted.result())
    behind.settimeout(float(neighbours["patience"]))
    return _Place(before, behind)


def _admit(listener: socket.socket, meeting: Meeting) -> socket.socket:
    """Return the connection of the worker behind this one (OSError: none came)."""
    deadline = time.monotonic() + meeting.timeout
    with closing(_proven(listener, meeting, 0)) as arrivals:
        while time.monotonic() <= deadline:
            for connection, _, _ in next(arrivals):
                with suppress(OSError):
                    connection.sendall(YES)
                    return connection
                connection.close()
    raise TimeoutError("timed out")


def _join(host: str, port: int, meeting: Meeting) -> socket.socket:
    """Return a connection to the worker before this one (OSError: it cannot be reached)."""
    connection = socket.create_connection((host, port), min(LINK_S, meeting.timeout / 4))
    try:
        _prove(connection, meeting)
        _read(connection, bytearray(1))
    except OSError:
        connection.close()
        raise
    connection.settimeout(meeting.timeout)
    return connection


def _stop(listener: socket.socket) -> None:
    """Wake the thread that waits in `accept`."""
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)


def _prove(connection: socket.socket, meeting: Meeting) -> None:
    challenge = _read(connection, bytearray(SIZE))
    connection.sendall(_proof(meeting, challenge))


def _proof(meeting: Meeting, challenge: bytes | bytearray) -> bytes:
    return hmac.digest(bytes.fromhex(meeting.secret), challenge, "sha256")


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the tensor's own memory, as bytes that can be read and filled."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _read_parts(connection: socket.socket, view: memoryview) -> Iterator[memoryview]:
    """Fill `view`; yield what has come each time."""
    filled = 0
    while filled < len(view):
        count = connection.recv_into(view[filled : filled + PART])
        if count == 0:
            raise ConnectionError("the other side closed the connection")
        yield view[filled : filled + count]
        filled += count


def _read(connection: socket.socket, buffer: bytearray) -> bytearray:
    """Fill a buffer (OSError: it was not filled)."""
    for _ in _read_parts(connection, memoryview(buffer)):
        pass
    return buffer
