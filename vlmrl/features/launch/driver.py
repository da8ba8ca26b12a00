"""`vlmrl launch`: a run on many machines, begun again from its last checkpoint when one of them is lost.

The driver trains nothing. It owns the run folder, numbers the attempts, and before anything else is done
about one that failed it writes the next number, so that what is left of it writes nothing more
(`vlmrl.runs.run_lock`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmrl.config import Config
from vlmrl.errors import UserError
from vlmrl.features.launch.attempt import Attempt, Ending
from vlmrl.features.launch.graders import RESOURCE, start_graders
from vlmrl.features.launch.pools import POOLS
from vlmrl.features.launch.ray_host import bundle_of, connected, reserved
from vlmrl.features.launch.server_keeper import start_keepers
from vlmrl.runs import run_folder, run_lock
from vlmrl.runs.output.events import Interrupted, Noted, Warned
from vlmrl.runs.output.outputs import Output
from vlmrl.system.interrupt import Interrupt


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
        before = _checkpoints(config.folder)
        return _Launch(
            ray, config, arguments, lambda: interrupt.asked, output, as_json, before
        ).run()


@dataclass
class _Launch:
    ray: Any
    config: Config
    arguments: Sequence[str]
    stop: Callable[[], bool]
    output: Output
    as_json: bool
    before: Mapping[Path, int]
    """Checkpoints that were there, with the times when they were written."""
    avoided: frozenset[str] = frozenset()
    pools: StartedPools | None = None

    def run(self) -> bool:
        failures, number = 0, run_lock.begin_attempt(self.config.folder)
        while True:
            before = self._reached()
            ending, number = self._try(number)
            if ending.kind in ("finished", "saved"):
                return ending.kind == "finished"
            if ending.kind == "mistake":
                raise UserError(ending.why)
            reached = self._reached()
            failures = 1 if reached != before else failures + 1
            if failures > self.config.cluster.retries:
                raise AttemptsFailed(
                    f"{failures} attempts in a row came to no new checkpoint; the last: {ending.why}"
                )
            self.avoided |= ending.lost
            self._warn(f"{ending.why}\ngoing on from {reached or 'where this launch began'}")

    def _warn(self, text: str) -> None:
        self.output.say(Warned(text))

    def _try(self, number: int) -> tuple[Ending, int]:
        """Make an attempt; return how it ended, and the number of the next."""
        config, train = self.config, self.config.cluster.train
        bundle = bundle_of(self.ray.nodes(), train.gpus_per_node)
        grows = config.cluster.address is not None
        with reserved(
            self.ray, bundle, train.nodes, self.avoided, self.stop, self._warn, grows
        ) as group:
            if group is None:
                self.output.say(Interrupted(resume=None, kept=None))
                return Ending("saved"), number
            logs = self._logs(number)
            by_gpu = "GPU" in bundle
            if not by_gpu:
                self.output.say(Noted("no node has a GPU: the ranks are placed by CPU"))
            if self.pools is None:  # the ranks have their places
                self.pools = _start(self.ray, config, self._warn)
            attempt = Attempt(
                self.ray,
                group,
                train.gpus_per_node,
                by_gpu,
                number,
                logs,
                config.cluster.detect_s,
                self.pools.variables,
                self.output,
                self.as_json,
            )
            try:
                arguments = ["-m", "vlmrl", "train", *self.arguments]
                if reached := self._reached():  # go on from there
                    own = config.resume.start in ("never", "auto")
                    arguments.append(f"resume={'auto' if own else reached}")
                with self.output.doing("starting the ranks"):
                    failed = attempt.start(arguments, Path.cwd())
                ending = failed or attempt.watch(self.stop)
            finally:
                number = run_lock.begin_attempt(config.folder)  # what is left of it writes no more
                attempt.end()
        return ending, number

    def _logs(self, number: int) -> Path:
        """Return the folder of an attempt's logs, in the run folder of a new or a resumed run."""
        folder = self.config.folder.absolute()
        begun = self._reached() if self.config.resume.start == "never" else _checkpoints(folder)
        if self.config.resume.start in ("never", "auto") and not begun:
            run_folder.move_aside(folder)
        logs = folder / "logs" / f"attempt-{number}"
        logs.mkdir(parents=True, exist_ok=True)
        return logs

    def _reached(self) -> Path | None:
        """Return the newest checkpoint that this launch has written."""
        now = _checkpoints(self.config.folder)
        own = [path for path, written in now.items() if self.before.get(path) != written]
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

    variables: Mapping[str, str]
    """By which ranks find them."""
    actors: tuple[Any, ...] = ()


def _start(ray: Any, config: Config, say: Callable[[str], None]) -> StartedPools:
    """Ask for what a config has beside the ranks, and `say` so if the cluster has no room for all of it."""
    cluster, serve = config.cluster, config.cluster.serve
    if not cluster.graders and not serve.replicas:
        return StartedPools({})
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
