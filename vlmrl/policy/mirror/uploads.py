"""Checkpoints are copied to the mirror beside training, one at a time.

Training never waits for a copy, and a store that fails never ends it: each failure is told, the next
checkpoint tries again, and the end of the run does until it is there or has failed `TRIES` times.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vlmrl.errors import UserError
from vlmrl.policy import checkpoint
from vlmrl.policy.mirror.claim import Claim
from vlmrl.policy.mirror.contents import Contents
from vlmrl.policy.mirror.manifests import (
    Damaged,
    Manifest,
    Stored,
    attempts,
    manifests,
    read_manifest,
)
from vlmrl.policy.mirror.store import Store, StoreFailed
from vlmrl.system.disk_space import reason_of
from vlmrl.system.launched import fence

__all__ = ["Uploads"]

TRIES = 3
"""Rounds at the end of a run after which a store that fails is given up."""
AGAIN_S = 10.0
"""Seconds between two of them."""
PROGRESS_S = 10.0
"""Seconds between two lines while the end of the run waits."""


class Uploads:
    """Copies the checkpoints of a run folder, and keeps of a mirror's what the run folder would keep."""

    def __init__(
        self, folder: Path, store: Store, claim: Claim, keep: int, tell: Callable[[str], None]
    ) -> None:
        self._folder, self._store, self._claim, self._keep = folder, store, claim, keep
        self._tell = tell
        self._contents = Contents(folder, store)
        self._written: dict[str, dict[str, Stored]] = {}
        self._number = 0
        self._best: int | None = None
        self._reading: str | None = None
        self._size = 0
        self._failure: Exception | None = None
        self._lost: Exception | None = None
        self._wanted = self._done = 0
        self._ending = False
        self._lock = threading.Lock()
        self._change = threading.Condition(self._lock)
        threading.Thread(target=self._work, daemon=True).start()

    @property
    def begun(self) -> bool:
        """Return whether this process had anything to copy."""
        return self._wanted > 0

    def follow(self, best: int | None) -> None:
        """Take note that a checkpoint is whole; it is copied when the one under way is."""
        with self._change:
            self._best = best
            self._wanted += 1
            self._change.notify_all()

    def require_ours(self) -> None:
        """Check that the run may still write to its mirror.

        Raises:
            UserError: a later process does; the line names it.
        """
        if self._lost is not None:
            raise self._lost

    @contextmanager
    def sparing(self) -> Iterator[str | None]:
        """Yield the name of the checkpoint that is being copied; inside, no other copy begins."""
        with self._lock:
            yield self._reading

    def finish(self) -> None:
        """Copy the newest checkpoint and what the run has written since, and wait for it; Ctrl-C gives up.

        Raises:
            UserError: it is not there; the line has the last failure.
        """
        self._ending = True
        for again in range(TRIES):
            if again:
                time.sleep(AGAIN_S)
            self.follow(self._best)
            try:
                self._wait()
            except KeyboardInterrupt:
                self._tell(
                    f"mirror: given up; {self._reading or 'the end of the run'} is not there"
                )
                raise
            self.require_ours()
            if self._failure is None:
                break
        if self._failure is not None:
            there = max(self._written, key=lambda n: checkpoint.order_of(Path(n)), default="none")
            raise UserError(
                f"run.mirror: the run in {self._folder} is not copied to its end (newest there by this "
                f"process: {there}): {self._failure}; the same command with resume=auto copies the rest"
            ) from self._failure
        if self._written:
            self._tell(f"the run is in its mirror, {self._store.url}")

    def _wait(self) -> None:
        with self._change:
            while self._done < self._wanted:
                if not self._change.wait(PROGRESS_S) and self._reading:
                    done, size = self._contents.bytes_done / 1e6, self._size / 1e6
                    self._tell(
                        f"mirror: copying {self._reading}, {done:.0f} of {size:.0f} MB "
                        "(Ctrl-C gives up)"
                    )

    def _work(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._done < self._wanted)
                wanted = self._wanted
            self._failure = None
            try:
                self._copy_missing()
            except Exception as error:
                self._note(error)
            with self._change:
                self._reading = None
                self._done = wanted
                self._change.notify_all()

    def _note(self, error: Exception) -> None:
        self._failure = error
        if isinstance(error, fence.Superseded) or self._lost is not None:
            self._lost = self._lost or error
            return
        if not isinstance(error, UserError) and reason_of(error) is None:
            self._lost = error  # our own mistake: told with its traceback by the next save
            return
        then = "trying again" if self._ending else "the next checkpoint tries again"
        what = self._reading or "the newest checkpoint"
        self._tell(f"mirror: copying {what} failed: {error}; {then}")

    def _copy_missing(self) -> None:
        """Copy the newest checkpoint, and the best; then delete what is to go."""
        for best in (False, True):
            with self._lock:
                name = self._reading = self._choose(best)
            if name is not None:
                self._copy(name)
                self._prune()

    def _choose(self, best: bool) -> str | None:
        names = {path.name for path in checkpoint.find_all(self._folder)}
        if best:
            name = f"step-{self._best}"
            return name if name in names - self._written.keys() else None
        newest = max(names, key=lambda name: checkpoint.order_of(Path(name)), default=None)
        return newest if newest not in self._written or self._ending else None

    def _copy(self, name: str) -> None:
        self._require_current()
        self._number += 1
        manifest = Manifest(self._claim.attempt, name, self._number)
        self._size = self._contents.size(name)
        files = self._contents.copy(manifest, fence.require_current)
        if self._written.get(name) == files:
            return
        self._require_current()
        self._store.write(manifest.name, manifest.encode(files))
        self._written[name] = files

    def _require_current(self) -> None:
        """Check that neither another attempt of the launch nor another process has taken over."""
        fence.require_current()
        try:
            self._claim.require_newest()
        except StoreFailed:
            raise
        except UserError as error:
            self._lost = error
            raise

    def _prune(self) -> None:
        """Delete the checkpoints that the run folder would not keep, and all objects that no other has."""
        among = [a for a in attempts(self._store) if a <= self._claim.attempt]
        found = manifests(self._store, among)
        newest = {(m.attempt, m.checkpoint): m for m in found}  # of one checkpoint the last
        read: dict[Manifest, dict[str, Stored]] = {}
        for manifest in newest.values():
            try:
                read[manifest] = read_manifest(self._store, manifest)
            except Damaged:
                continue
        ordered = sorted(read, key=lambda manifest: manifest.order)
        named = {m.checkpoint: m for m in ordered}
        spared = (f"step-{self._best}", *checkpoint.cold_start(named))
        kept = {*ordered[-self._keep :], *(named[name] for name in spared if name in named)}
        self._require_current()
        self._store.delete(m.name for m in found if m not in kept)
        used = {stored.name for manifest in kept for stored in read[manifest].values()}
        used |= {manifest.name for manifest in kept}
        for attempt in among:
            own = {f"{attempt.folder}/{name}" for name in ("attempt.json", "alive")}
            keeps = own if attempt == self._claim.attempt else set()
            unused = set(self._store.objects(attempt.folder)) - used - keeps
            self._store.delete(sorted(unused))
            self._contents.forget(unused)
