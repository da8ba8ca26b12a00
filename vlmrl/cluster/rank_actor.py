"""One rank on its node: a Ray actor that starts the process, watches it, and dies with its node.

The process is `vlmrl train` with torchrun's variables, as torchrun itself would start it, so its main
thread is its own and a signal saves the run. The actor imports torch on rank 0 only, for the store at
which the ranks meet.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlmrl.errors import UserError
from vlmrl.system import distributed
from vlmrl.system.launched import parent_watch

__all__ = ["RankActor"]


class RankActor:
    """Starts one rank's process and says how it ended; a threaded actor, so that it always answers."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._store: Any = None
        parent_watch.end_with(os.getppid(), self.kill)  # the parent is the node's raylet

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
        told: Path | None = None,
    ) -> None:
        """Start `python ARGUMENTS` in `folder`, with these variables; its output goes to `log`.

        What it writes on standard output goes to `told` instead, if that is given.

        Raises:
            UserError: there is no such folder on this machine.
        """
        if not folder.is_dir():
            raise UserError(
                f"{folder}: expected the folder in which `vlmrl launch` was started, got none on "
                f"{socket.gethostname()}: all machines need it"
            )
        log.parent.mkdir(parents=True, exist_ok=True)
        own = {parent_watch.PARENT: str(os.getpid()), "PYTHONUNBUFFERED": "1"}
        # A rank that uses graders or servers joins the cluster, which may ask for its token.
        access = {k: v for k, v in os.environ.items() if k.startswith("RAY_AUTH_")}
        with (
            log.open("wb") as output,
            told.open("wb") if told else contextlib.nullcontext(output) as out,
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
