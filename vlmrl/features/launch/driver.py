"""`vlmrl launch`: a run on many machines, begun again from its last checkpoint when one of them is lost.

The driver trains nothing. It owns the run folder, numbers the attempts, and before anything else is done
about one that failed it writes the next number, so that what is left of it writes nothing more
(`vlmrl.runs.run_lock`).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vlmrl.assemble.build import LOCAL, Pools
from vlmrl.config import Config
from vlmrl.errors import UserError, import_extra
from vlmrl.features.launch.attempt import Attempt, Ending
from vlmrl.features.launch.graders import RESOURCE, pool_maker, start_graders
from vlmrl.features.launch.ray_host import bundle_of, connected, reserved
from vlmrl.features.launch.server_keeper import fleet_of, start_keepers
from vlmrl.runs import run_folder, run_lock
from vlmrl.runs.output.events import Interrupted, Noted, Warned
from vlmrl.runs.output.outputs import Output
from vlmrl.system.interrupt import Interrupt

POOLS = "VLMRL_POOLS"
"""Environment variable of a rank: Ray's address, and the namespace of the graders and servers."""


class AttemptsFailed(Exception):
    """More attempts in a row failed than `cluster.retries` allows."""


def launch(config: Config, arguments: Sequence[str], output: Output, as_json: bool = False) -> bool:
    """Run `python -m vlmrl train ARGUMENTS`, whose config is `config`, as the ranks of a Ray cluster.

    `output` says what becomes of the attempts, and passes on what rank 0 says: with `as_json`, which
    `arguments` have to ask for as well, events. Returns whether the run came to its end; False after Ctrl-C,
    when it has been saved.

    Raises:
        MissingExtra: Ray is not installed.
        UserError: a mistake of the user's, also one that the ranks found.
        AttemptsFailed: too many failures without progress.
    """
    cluster = config.cluster
    if cluster.address is None and cluster.train.nodes > 1:
        raise UserError(
            f"cluster.address: expected the address of a Ray cluster for {cluster.train.nodes} nodes, got "
            "none"
        )
    with ExitStack() as stack:
        with output.doing("starting Ray" if cluster.address is None else "joining Ray's cluster"):
            ray = stack.enter_context(
                connected(cluster.address, cluster.train.gpus_per_node, _room(config))
            )
        stack.enter_context(run_lock.own(config.folder))
        interrupt = stack.enter_context(Interrupt())
        return _Launch(ray, config, arguments, lambda: interrupt.asked, output, as_json).run()


class _Launch:
    def __init__(
        self,
        ray: Any,
        config: Config,
        arguments: Sequence[str],
        stop: Callable[[], bool],
        output: Output,
        as_json: bool,
    ) -> None:
        self._ray = ray
        self._config = config
        self._arguments = arguments
        self._stop = stop
        self._output = output
        self._as_json = as_json
        self._avoided: frozenset[str] = frozenset()
        self._before = _checkpoints(config.folder)
        self._pools: StartedPools | None = None

    def run(self) -> bool:
        failures, number = 0, self._next_attempt()
        while True:
            before = self._reached()
            ending, number = self._try(number)
            if ending.kind in ("finished", "saved"):
                return ending.kind == "finished"
            if ending.kind == "mistake":
                raise UserError(ending.why)
            reached = self._reached()
            failures = 1 if reached != before else failures + 1
            if failures > self._config.cluster.retries:
                raise AttemptsFailed(
                    f"{failures} attempts in a row came to no new checkpoint; the last: {ending.why}"
                )
            self._avoided |= ending.lost
            self._warn(f"{ending.why}\ngoing on from {reached or 'where this launch began'}")

    def _warn(self, text: str) -> None:
        self._output.say(Warned(text))

    def _next_attempt(self) -> int:
        """Take the run away from the attempt before, and return the number of the next."""
        return run_lock.begin_attempt(self._config.folder)

    def _try(self, number: int) -> tuple[Ending, int]:
        """Make an attempt; return how it ended, and the number of the next."""
        config, train = self._config, self._config.cluster.train
        bundle = bundle_of(self._ray.nodes(), train.gpus_per_node)
        grows = config.cluster.address is not None
        with reserved(
            self._ray, bundle, train.nodes, self._avoided, self._stop, self._warn, grows
        ) as group:
            if group is None:
                self._output.say(Interrupted(resume=None, kept=None))
                return Ending("saved"), number
            logs = self._logs(number)
            by_gpu = "GPU" in bundle
            if not by_gpu:
                self._output.say(Noted("no node has a GPU: the ranks are placed by CPU"))
            if self._pools is None:  # the ranks have their places
                self._pools = _start(self._ray, config, self._warn)
            attempt = Attempt(
                self._ray,
                group,
                train.gpus_per_node,
                by_gpu,
                number,
                logs,
                config.cluster.detect_s,
                self._pools.variables,
                self._output,
                self._as_json,
            )
            try:
                arguments = ["-m", "vlmrl", "train", *self._arguments, *self._resume()]
                with self._output.doing("starting the ranks"):
                    failed = attempt.start(arguments, Path.cwd())
                ending = failed or attempt.watch(self._stop)
            finally:
                number = self._next_attempt()
                attempt.end()
        return ending, number

    def _logs(self, number: int) -> Path:
        """Return the folder of an attempt's logs, in the run folder of a new or a resumed run."""
        folder = self._config.folder.absolute()
        begun = self._reached() if self._config.resume == "never" else _checkpoints(folder)
        if self._config.resume in ("never", "auto") and not begun:
            run_folder.move_aside(folder)
        logs = folder / "logs" / f"attempt-{number}"
        logs.mkdir(parents=True, exist_ok=True)
        return logs

    def _resume(self) -> list[str]:
        """Return what is added to the arguments: to go on from what this launch has reached."""
        reached = self._reached()
        if reached is None:
            return []
        own = self._config.resume in ("never", "auto")
        return [f"resume={'auto' if own else reached}"]

    def _reached(self) -> Path | None:
        """Return the newest checkpoint that this launch has written."""
        now = _checkpoints(self._config.folder)
        own = [path for path, written in now.items() if self._before.get(path) != written]
        return max(own, key=lambda path: now[path]) if own else None


def _checkpoints(folder: Path) -> dict[Path, int]:
    """Return when the checkpoints of a run folder were written."""
    return {path.absolute(): path.stat().st_mtime_ns for path in run_folder.checkpoints(folder)}


# ------------------------------------------------------------------------------ graders and servers
# The launcher starts them once, the ranks of every attempt find them. They end with the launcher.


def _room(config: Config) -> dict[str, float]:
    """Return what the graders of a config take of all nodes, by the name of the resource."""
    taken = float(config.cluster.graders * config.scoring.workers)
    return {RESOURCE: taken} if taken else {}


@dataclass(frozen=True)
class StartedPools:
    """Graders and servers, which run as long as this object is there."""

    variables: Mapping[str, str] = field(default_factory=dict)
    """By which ranks find them."""
    actors: tuple[Any, ...] = ()


def _start(ray: Any, config: Config, say: Callable[[str], None]) -> StartedPools:
    """Ask for what a config has beside the ranks, and `say` so if the cluster has no room for all of it."""
    cluster, serve = config.cluster, config.cluster.serve
    if not cluster.graders and not serve.replicas:
        return StartedPools()
    there = ray.available_resources()
    for name, taken in {**_room(config), "GPU": float(serve.replicas * serve.gpus)}.items():
        if (free := there.get(name, 0.0)) < taken:
            say(
                f"graders and servers take {name} {taken:g}, and {free:g} are free: some start when a "
                "node with room joins"
            )
    namespace = f"vlmrl-{secrets.token_hex(8)}"
    graders = start_graders(cluster.graders, config.scoring.workers, namespace)
    servers = start_keepers(serve.replicas, serve.gpus, namespace)
    address = ray.get_runtime_context().gcs_address
    return StartedPools({POOLS: f"{address} {namespace}"}, (*graders, *servers))


def pools_of(config: Config) -> Pools:
    """Return the pools of the run that this process is a rank of; those of this machine without any.

    Raises:
        UserError: no server has a place.
    """
    if POOLS not in os.environ:
        return LOCAL
    ray = import_extra("ray", "ray")
    address, namespace = os.environ[POOLS].split()
    ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level="ERROR")
    graders, servers = config.cluster.graders, config.cluster.serve.replicas
    return Pools(
        pool_maker(graders, namespace) if graders else LOCAL.make_pool,
        fleet_of(servers, namespace) if servers else None,
    )
