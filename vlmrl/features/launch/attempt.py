"""One attempt at a run: its ranks' processes from their start to the first sign of an end.

A process serves one attempt and no other: after a failure all of them are killed, and the next attempt
has new ones. It is `vlmrl train` with torchrun's variables, as torchrun itself would start it, so its main
thread is its own and a signal saves the run.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vlmrl.errors import UserError
from vlmrl.runs.output.outputs import Output
from vlmrl.system import distributed, processes

START_S = 300.0
"""Seconds in which the actors must be there: a node may have to read its files from a slow disk."""
ASK_S = 2.0
"""Seconds for which an actor waits for its process's end before it answers that it lives."""
SETTLE_S = 5.0
"""Seconds for the other ranks to say why they ended, after the first has."""
LOOK_S = 0.2
SAVED, MISTAKE = 130, 2
"""Exit codes of `vlmrl train` after a signal, and for a mistake of the user's."""
LAST_LINES = 12


# ------------------------------------------------------------------------------------------- places


@dataclass(frozen=True)
class Place:
    """Where a process runs: the machine's address, its GPU ("" without), and Ray's id of the node."""

    address: str
    device: str
    node: str


def order(places: Sequence[Place]) -> list[int]:
    """Return the indices of `places` by rank: by address, then by GPU, so that neighbours are near."""

    def key(index: int) -> tuple[int, int, str, int, str]:
        seat = places[index]
        address = ipaddress.ip_address(seat.address)
        number = int(seat.device) if seat.device.isdecimal() else 0
        return address.version, int(address), seat.node, number, seat.device

    return sorted(range(len(places)), key=key)


def variables(places: Sequence[Place], port: int, attempt: int) -> list[dict[str, str]]:
    """Return the variables of every rank, whose places are given in their order.

    Ranks at one address are one machine, also where Ray takes it for several nodes. Each sees the
    GPUs of all of them there, and its own by LOCAL_RANK, as under torchrun.
    """
    by_machine = defaultdict(list)
    for rank, seat in enumerate(places):
        by_machine[seat.address].append(rank)
    variables_of = []
    for rank, seat in enumerate(places):
        here = by_machine[seat.address]
        own = {
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
        if seat.device:
            own["CUDA_VISIBLE_DEVICES"] = ",".join(places[other].device for other in here)
        variables_of.append(own)
    return variables_of


# ------------------------------------------------------------------------------------- on each node


class RankActor:
    """Starts one rank's process and says how it ended; a threaded actor, so that it always answers."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._store: Any = None
        processes.end_with(os.getppid(), self.kill)  # the parent is the node's raylet

    def place(self) -> tuple[str, str]:
        """Return Ray's id of the node, and the GPU that Ray gave this actor ("" if none)."""
        import ray

        context = ray.get_runtime_context()
        gpus = context.get_accelerator_ids().get("GPU", [])
        return context.get_node_id(), os.environ["CUDA_VISIBLE_DEVICES"] if gpus else ""

    def open_store(self, address: str, world: int) -> int:
        """Open the store at which `world` ranks meet, on this address alone; return its port."""
        import torch.distributed as dist

        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.bind((address, 0))
        listener.listen()
        port = int(listener.getsockname()[1])
        self._store = dist.TCPStore(
            address,
            port,
            world,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        return port

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        log: Path,
        events: Path | None = None,
    ) -> None:
        """Start `python ARGUMENTS` in `folder`, with these variables; its output goes to `log`.

        What it writes on standard output goes to `events` instead, if there is such a file.

        Raises:
            UserError: there is no such folder on this machine.
        """
        if not folder.is_dir():
            raise UserError(
                f"{folder}: expected the folder in which `vlmrl launch` was started, got none on "
                f"{socket.gethostname()}: all machines need it"
            )
        log.parent.mkdir(parents=True, exist_ok=True)
        own = {processes.PARENT: str(os.getpid()), "PYTHONUNBUFFERED": "1"}
        # A rank that uses graders or servers joins the cluster, which may ask for its token.
        access = {k: v for k, v in os.environ.items() if k.startswith("RAY_AUTH_")}
        with (
            log.open("wb") as output,
            events.open("wb") if events else contextlib.nullcontext(output) as out,
        ):
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=folder,
                env={**distributed.outside(os.environ), **access, **environment, **own},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=output,
                start_new_session=True,  # one group, which is killed together
            )

    def wait(self, seconds: float) -> int | None:
        """Wait as long for the end of the process; return its exit code, None if it lives."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def stop(self) -> None:
        """Ask the process to finish its step, save, and exit."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process and all that it started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


# ------------------------------------------------------------------------------------ in the driver


@dataclass(frozen=True)
class Ending:
    """How an attempt ended.

    `kind`: "finished"; "saved" by a signal before its end; "mistake" of the user's; "fault". `lost`
    are the ids of nodes that did not answer any more.
    """

    kind: str
    why: str = ""
    lost: frozenset[str] = frozenset()


@dataclass
class _Rank:
    actor: Any
    host: Place
    answer: Any = None
    silent_s: float = 0.0
    code: int | None = None
    gone: str = ""


@dataclass
class Attempt:
    """Starts an attempt's processes on reserved places, and watches them.

    `group` is the placement group, each of whose bundles has room for `per_node` processes; `logs` the
    folder of their output, of which that of rank 0 is shown as it grows; `environment` more variables of all
    ranks. With `as_json` rank 0 writes events, which `output` passes on, and the rest is shown on standard
    error.
    """

    ray: Any
    group: Any
    per_node: int
    by_gpu: bool
    number: int
    logs: Path
    detect_s: float
    environment: Mapping[str, str]
    output: Output
    as_json: bool = False
    _ranks: list[_Rank] = field(default_factory=list)
    _actors: list[Any] = field(default_factory=list)
    _failed: list[int] = field(default_factory=list)
    _shown: dict[Path, int] = field(default_factory=dict)
    """Bytes of a file that have been shown."""

    def start(self, arguments: Sequence[str], folder: Path) -> Ending | None:
        """Start `python ARGUMENTS` as every rank; return how that failed, None if it did not.

        Raises:
            UserError: a node lacks the folder.
        """
        try:
            self._start(arguments, folder)
        except UserError:  # Ray makes it an error of its own, too
            raise
        except self.ray.exceptions.RayError as error:
            return Ending("fault", f"the ranks did not start: {_brief(error)}")
        return None

    def _start(self, arguments: Sequence[str], folder: Path) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        make = self.ray.remote(RankActor)
        own = {"num_cpus": 1, "num_gpus": int(self.by_gpu), "max_concurrency": 4}
        for bundle in range(self.group.bundle_count):
            where = PlacementGroupSchedulingStrategy(
                self.group, placement_group_bundle_index=bundle
            )
            placed = make.options(scheduling_strategy=where, **own)
            self._actors += [placed.remote() for _ in range(self.per_node)]
        at = {node["NodeID"]: node["NodeManagerAddress"] for node in self.ray.nodes()}
        devices = self._get([actor.place.remote() for actor in self._actors])
        unordered = [Place(at[node], device, node) for node, device in devices]
        ranked = order(unordered)
        places = [unordered[index] for index in ranked]
        actors = [self._actors[index] for index in ranked]
        port = 0
        if len(places) > 1:
            (port,) = self._get([actors[0].open_store.remote(places[0].address, len(places))])
        started = []
        for rank, of_rank in enumerate(variables(places, port, self.number)):
            files = self._log(rank), None if rank else self._events
            environment = {**self.environment, **of_rank}
            started.append(actors[rank].start.remote(arguments, environment, folder, *files))
        self._get(started)
        self._ranks = [
            _Rank(actor, host, actor.wait.remote(ASK_S))
            for actor, host in zip(actors, places, strict=True)
        ]

    def _get(self, answers: Sequence[object]) -> list[Any]:
        return list(self.ray.get(list(answers), timeout=START_S))

    def watch(self, stop: Callable[[], bool]) -> Ending:
        """Return how the attempt ended; once `stop` says so, the ranks are asked to save and exit."""
        asked, settling = False, 0.0
        while True:
            before = time.monotonic()
            self._hear()
            if self._events is None:
                self.output.pass_on(self._read_on(self._log(0)))
            else:
                sys.stderr.write(self._read_on(self._log(0)))
                self.output.pass_on(self._read_on(self._events))
            if stop() and not asked:
                asked = True
                for rank in self._ranks:
                    rank.actor.stop.remote()
            if all(rank.code == 0 for rank in self._ranks):
                return Ending("finished")
            if all(rank.code in (0, SAVED) for rank in self._ranks):
                killed = Ending("fault", "the ranks were ended by a signal")
                return Ending("saved") if asked else killed
            settled = settling >= SETTLE_S or all(self._is_over(rank) for rank in self._ranks)
            if any(rank.gone for rank in self._ranks) or (self._failed and settled):
                return self._fault()
            time.sleep(LOOK_S)
            # Time in which this process itself was stopped says nothing about the ranks.
            passed = min(time.monotonic() - before, 1.0)
            settling += passed if self._failed else 0.0
            for rank in self._ranks:
                rank.silent_s += passed

    def _hear(self) -> None:
        """Take the answers that have come, and ask again."""
        asked = {rank.answer: rank for rank in self._ranks if not self._is_over(rank)}
        if not asked:
            return
        come, _ = self.ray.wait(list(asked), num_returns=len(asked), timeout=0)
        for answer in come:
            rank = asked[answer]
            try:
                code = rank.code = self.ray.get(answer)
            except self.ray.exceptions.RayError as error:
                rank.gone = _brief(error)
                continue
            rank.silent_s = 0.0
            if code is None:
                rank.answer = rank.actor.wait.remote(ASK_S)
            elif code not in (0, SAVED):
                self._failed.append(self._ranks.index(rank))
        for rank in asked.values():
            if rank.silent_s > ASK_S + self.detect_s:
                rank.gone = f"no answer for {rank.silent_s:.0f} s"

    @staticmethod
    def _is_over(rank: _Rank) -> bool:
        return rank.code is not None or bool(rank.gone)

    def _fault(self) -> Ending:
        gone = {n: rank for n, rank in enumerate(self._ranks) if rank.gone}
        if gone:
            who = ", ".join(f"rank {n} on {rank.host.address}" for n, rank in gone.items())
            lost = frozenset(rank.host.node for rank in gone.values())
            return Ending("fault", f"{who}: {next(iter(gone.values())).gone}", lost)
        mistaken = [n for n in self._failed if self._ranks[n].code == MISTAKE]
        first = (mistaken or self._failed)[0]  # the others failed because it did
        rank = self._ranks[first]
        where = f"rank {first} on {rank.host.address}"
        try:
            words = self._log(first).read_text(errors="replace").splitlines()[-LAST_LINES:]
        except OSError as error:
            words = [f"{self._log(first)}: {error.strerror}"]
        if mistaken:
            mistakes = [line for line in words if line.startswith("error: ")]
            return Ending("mistake", mistakes[-1].removeprefix("error: ") if mistakes else where)
        quoted = "".join(f"\n  {line}" for line in words) if first else ""
        return Ending("fault", f"{where} ended with exit code {rank.code}{quoted}")

    def _log(self, rank: int) -> Path:
        return self.logs / f"rank-{rank}.log"

    @property
    def _events(self) -> Path | None:
        return self.logs / "events.jsonl" if self.as_json else None

    def _read_on(self, path: Path) -> str:
        """Return the whole lines of a file that have not been shown."""
        shown = self._shown.get(path, 0)
        try:
            with path.open("rb") as file:
                file.seek(shown)
                new = file.read()
        except FileNotFoundError:  # a shared folder shows it later
            return ""
        whole = new[: new.rfind(b"\n") + 1]
        self._shown[path] = shown + len(whole)
        return whole.decode(errors="replace")

    def end(self) -> None:
        """Kill what is left of the processes, where it can be reached."""
        killed = [actor.kill.remote() for actor in self._actors]
        self.ray.wait(killed, num_returns=len(killed), timeout=SETTLE_S)
        for actor in self._actors:
            self.ray.kill(actor)


def _brief(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[0].split())[:200] if lines else type(error).__name__
