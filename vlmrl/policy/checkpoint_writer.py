"""Checkpoints are written: by all ranks and, where that is asked for, while training goes on.

A checkpoint is written next to its final name and renamed when every byte is on disk, so that a folder
named `step-N` or `sft-N` was whole when it was written. In the background a thread of each rank writes
what the main thread has copied to the CPU; one checkpoint at a time.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.distributed as dist
from safetensors.numpy import save_file

from vlmrl.policy import checkpoint, optimizers, weights
from vlmrl.policy.checkpoint import Progress
from vlmrl.policy.policy import Policy
from vlmrl.policy.weights import Unit
from vlmrl.runs import run_folder
from vlmrl.system import distributed
from vlmrl.system.files import (
    Stated,
    describe,
    persist,
    require_may_write,
    require_room,
    write_checksums,
)

if TYPE_CHECKING:
    from vlmrl.runs.mirror import Mirror

SAID = "cannot write checkpoint {path}: {reason}; earlier ones are kept"

log = logging.getLogger("vlmrl")

Arrays = Mapping[str, Mapping[str, np.ndarray]]


class CheckpointWriter:
    """Writes checkpoints of a run folder, and keeps the last `keep`, the best, and the cold start's last.

    `with` it the last one is waited for; not so after Ctrl-C, which leaves it unwritten.
    """

    mirror: Mirror | None = None
    """What copies them elsewhere; the main rank has one where the run has a mirror."""

    def __init__(
        self, folder: Path, policy: Policy, keep: int, in_background: bool = False
    ) -> None:
        self._folder, self._policy, self._keep = folder, policy, keep
        self._background = _Background() if in_background else None
        self._best: int | None = None

    def save(
        self,
        progress: Progress,
        best: int | None = None,
        queue: Sequence[Mapping[str, object]] = (),
        learned: Arrays | None = None,
    ) -> Path:
        """Write one checkpoint and remove old ones, see `prune`; `best` is a step.

        `queue` are JSON values of the batches that are issued and not yet trained on
        (`RolloutQueue.collect_state`), `learned` the arrays of the sampler (`DrawPlan.arrays`), of the
        strategies, and of what tools showed in those batches, by these names. In the background it is
        there when `finish`, or the next `save`, returns.

        Raises:
            UserError: the disk is full or the folder cannot be written, for this checkpoint or for
                one before that was written in the background. Earlier checkpoints are untouched.
            NotFinite: the policy's numbers are not finite; earlier checkpoints are untouched.
            Superseded: a later attempt writes this run.
        """
        self._policy.require_finite()
        self.finish()
        self._best = best
        require_may_write()
        final = self._folder / "checkpoints" / progress.name
        if distributed.is_main():
            _clear(final.parent)
        learned = learned or {}
        more = sum(array.nbytes for arrays in learned.values() for array in arrays.values())
        state_bytes = optimizers.size(self._policy.optimizer) + more
        require_room(final, checkpoint.size(self._policy, state_bytes))

        def write_small(working: Path) -> None:
            _write_small(working / "trainer", self._policy, progress, queue, learned)

        if self._background is None:
            self._write_now(final, write_small)
        else:
            self._write_later(self._background, final, write_small)
        return final

    def finish(self) -> None:
        """Wait for a checkpoint that is written in the background.

        Raises:
            UserError: it could not be written.
        """
        if self._background is not None:
            self._background.finish()

    def _write_now(self, final: Path, write_small: Callable[[Path], None]) -> None:
        working, policy = _working(final), self._policy

        def write() -> None:
            write_small(working)
            parts: Iterable[tuple[int, Unit]] = ()
            if policy.sharded is None:
                policy.save(str(working))
            else:
                policy.save_frame(str(working))
                parts = policy.parts()
            own = _write_large(working, parts, lambda home: optimizers.save(home, policy))
            _complete(working, final, own)

        alone = distributed.world() == 1
        persist(final, lambda: _clearing(working, write), SAID, again=alone)
        self._follow_up()
        distributed.barrier()

    def _write_later(
        self, background: _Background, final: Path, write_small: Callable[[Path], None]
    ) -> None:
        working, policy, alone = _working(final), self._policy, distributed.world() == 1
        group = background.group

        def begin() -> None:
            write_small(working)
            policy.save_frame(str(working))

        persist(final, lambda: _clearing(working, begin), SAID, again=alone)
        parts, optimizer = list(policy.parts()), optimizers.stage(policy, group)

        def write() -> None:
            _complete(working, final, _write_large(working, parts, optimizer), group)

        def work() -> None:
            _clearing(working, lambda: persist(final, write, SAID, again=alone))
            self._follow_up()

        background.start(work)

    def _follow_up(self) -> None:
        if self.mirror is not None:
            self.mirror.follow(self._best)
        self.prune()

    def prune(self) -> None:
        """Delete all but the last `keep`, the best, the cold start's last, and what is being copied."""

        def prune() -> None:
            with (
                contextlib.nullcontext() if self.mirror is None else self.mirror.sparing() as copied
            ):
                paths = run_folder.checkpoints(self._folder)
                names = (path.name for path in paths)
                kept = {copied, *run_folder.kept_checkpoints(names, self._keep, self._best)}
                for path in paths:
                    if path.name not in kept:
                        path.rename(path.with_name(f".{path.name}.old"))
            _clear(self._folder / "checkpoints")

        if distributed.is_main():
            persist(self._folder / "checkpoints", prune, again=distributed.world() == 1)

    def __enter__(self) -> CheckpointWriter:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for the last checkpoint; if an error ends the run, a failure of that is a line more."""
        if kind is None:
            self.finish()
        elif issubclass(kind, Exception):
            try:
                self.finish()
            except Exception as failure:
                log.error("and in the background: %s", failure)


class _Background:
    """A thread of each rank that does one piece of work at a time, while the main one goes on.

    It ends with the process, done or not. The threads of all ranks talk by `group`, so that nothing mixes
    with what the main ones say, and wait for each other for 30 minutes at most.
    """

    def __init__(self) -> None:
        self._group: Any = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    @property
    def group(self) -> Any:
        """The process group of the threads; None for one process. All ranks ask together the first time."""
        if distributed.world() > 1 and self._group is None:
            self._group = dist.new_group(backend="gloo")
        return self._group

    def start(self, work: Callable[[], None]) -> None:
        """Begin with `work`; nothing else may be under way."""
        assert self._thread is None, "finish was not called"
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait until the work is done, if there is any, and raise what it raised."""
        if self._thread is None:
            return
        self._thread.join()
        self._thread, failure, self._failure = None, self._failure, None
        if failure is not None:
            raise failure

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as failure:
            self._failure = failure


def _write_small(
    home: Path,
    policy: Policy,
    progress: Progress,
    queue: Sequence[Mapping[str, object]],
    learned: Arrays,
) -> None:
    """Write all but the weights and the optimizer's state; all ranks call it, the main one writes."""
    adapter = policy.training_state()
    if distributed.is_main():
        home.mkdir(parents=True)
        if adapter:
            from vlmrl.policy import adapter_folder

            adapter_folder.save(home.parent / adapter_folder.FOLDER, policy, adapter)
        (home / "state.json").write_text(json.dumps(asdict(progress), indent=1))
        if queue:
            (home / "queue.json").write_text(json.dumps(queue))
        for name, arrays in learned.items():
            if arrays:
                save_file(dict(arrays), home / f"{name}.safetensors")
    distributed.barrier()


def _working(final: Path) -> Path:
    attempt = f".{distributed.attempt()}" if distributed.attempt() else ""
    return final.with_name(f".{final.name}{attempt}.part")


def _write_large(
    working: Path, parts: Iterable[tuple[int, Unit]], optimizer: Callable[[Path], None]
) -> dict[str, Stated]:
    """Write this rank's parts of the weights, and its slices of the state; return their checksums."""
    written = weights.write_parts(working, parts)
    optimizer(working / "trainer")
    written += optimizers.own_slices(working / "trainer")
    return {path.relative_to(working).as_posix(): describe(path) for path in written}


def _complete(working: Path, final: Path, own: Mapping[str, Stated], group: object = None) -> None:
    """Give a checkpoint its name when all ranks have written; the main rank does."""
    shares = distributed.gather_to_main(own, group)
    if not distributed.is_main():
        return
    known = {name: stated for share in shares for name, stated in share.items()}
    named = weights.name_parts(working, sum("/" not in name for name in known))
    known = {named.get(name, name): stated for name, stated in known.items()}
    write_checksums(working, working / "trainer", known)
    for path in [*working.rglob("*"), working]:
        weights.sync(path)
    require_may_write()
    shutil.rmtree(final, ignore_errors=True)
    os.replace(working, final)


def _clearing(working: Path, write: Callable[[], None]) -> None:
    """Call `write`; if it fails, delete what it has left."""
    try:
        write()
    except BaseException:  # a second Ctrl-C, too
        if distributed.is_main():
            shutil.rmtree(working, ignore_errors=True)
        raise


def _clear(folder: Path) -> None:
    """Delete what is to go, and what a killed process left half written or half deleted."""
    for suffix in ("old", "part"):
        for path in folder.glob(f".*.{suffix}"):
            shutil.rmtree(path)
