"""A Ray cluster of fake nodes on the loopback of this machine, and runs that are launched on it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from helpers.runs import ROOT, TINY
from vlmrl.features.launch.ray_host import LOOPBACK

BEGIN_S = 240.0
"""Seconds in which something must happen that has been asked for, on a machine with other work."""


class FakeCluster:
    """A head without places, and nodes with a place each."""

    def __init__(self, nodes: int) -> None:
        from ray.cluster_utils import Cluster

        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        head = {"num_cpus": 0, "include_dashboard": False, **_small()}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address = str(self._cluster.address)
        self.nodes: list[Any] = []
        for _ in range(nodes):
            self.add()

    def add(self) -> None:
        """Add a node; Ray gives it 30 s to start, which a machine with other work may exceed."""
        for last in (False, False, True):
            try:
                self.nodes.append(self._cluster.add_node(num_cpus=1, **_small()))
                return
            except Exception as error:
                if last or "timed out during startup" not in str(error):
                    raise

    def used(self) -> Any:
        """Return the newest node on which a rank trains; None without one."""
        return next((node for node in reversed(self.nodes) if ranks_under(raylet(node))), None)

    def kill(self, node: Any) -> None:
        """Kill the node's raylet, as if the machine went away for all others; what it started lives on."""
        os.kill(raylet(node), signal.SIGKILL)
        self.nodes.remove(node)

    def freeze(self, node: Any) -> list[psutil.Process]:
        """Stop the node's raylet and all under it, as a lost network would; return them."""
        first = psutil.Process(raylet(node))
        found = [first, *first.children(recursive=True)]
        for process in found:
            process.suspend()
        self.nodes.remove(node)
        return found

    def close(self) -> None:
        """End all nodes."""
        self._cluster.shutdown()


def _small() -> dict[str, Any]:
    return {"object_store_memory": 100 * 2**20, "node_ip_address": LOOPBACK}


def raylet(node: Any) -> int:
    """Return the process id of a node's raylet."""
    return int(node.all_processes["raylet"][0].process.pid)


def ranks_under(pid: int) -> list[psutil.Process]:
    """Return the processes of ranks that a raylet's actors have started."""
    return [
        process
        for process in psutil.Process(pid).children(recursive=True)
        if _is_rank(process) and process.environ().get("VLMRL_ATTEMPT")
    ]


def _is_rank(process: psutil.Process) -> bool:
    try:
        return process.cmdline()[1:4] == ["-m", "vlmrl", "train"]
    except psutil.Error:
        return False


def arguments(folder: Path, *more: str) -> list[str]:
    """Return the arguments of a run of a few tiny steps that saves each of them."""
    own = ["run.save_every=1", "evaluation=null", "sft.max_steps=2", f"run.dir={folder}"]
    return ["quickstart", *TINY, *own, *more]


@contextmanager
def launched(
    cluster: FakeCluster, nodes: int, given: list[str], *more: str
) -> Iterator[subprocess.Popen[str]]:
    """Inside, `vlmrl launch` runs on one process of each of `nodes` nodes; it is killed at the end."""
    command = [
        sys.executable,
        "-m",
        "vlmrl",
        "launch",
        *given,
        f"cluster.address={cluster.address}",
    ]
    process = subprocess.Popen(
        [*command, *more, "--nodes", str(nodes), "--gpus-per-node", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def finish(process: subprocess.Popen[str]) -> str:
    """Wait for a successful end; return what was printed."""
    said, _ = process.communicate(timeout=2 * BEGIN_S)
    assert process.returncode == 0, said
    return said


def wait_until(happened: Callable[[], object], process: subprocess.Popen[str]) -> None:
    """Wait until something is the case that a living process brings about."""
    end = time.monotonic() + BEGIN_S
    while not happened():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def lines_in(folder: Path) -> int:
    """Return how many steps a run has reported."""
    path = folder / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0
