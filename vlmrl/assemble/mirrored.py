"""A run with a mirror: where it goes on from, and what must be copied before it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vlmrl.config import Config
from vlmrl.errors import UserError
from vlmrl.policy import checkpoint
from vlmrl.policy.mirror.claim import Claim
from vlmrl.policy.mirror.download import download_newest
from vlmrl.policy.mirror.manifests import attempts, manifests
from vlmrl.policy.mirror.store import Store, open_store
from vlmrl.policy.mirror.uploads import Uploads
from vlmrl.system import distributed
from vlmrl.system.launched import fence

__all__ = ["Mirrored", "open_mirror"]

Tell = Callable[[str], None]


class Mirrored:
    """How a run with or without a mirror begins and ends."""

    uploads: Uploads | None = None
    """What copies checkpoints; None for a run without a mirror, and on ranks but the main one."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def resolve(self) -> Path | None:
        """Return the checkpoint that the run goes on from; None to start anew.

        Raises:
            UserError: as `checkpoint.resolve`.
        """
        return checkpoint.resolve(self._config.resume, self._config.folder)

    def finish(self) -> bool:
        """Wait until all is copied; return whether anything was to be."""
        return False


class _OfMain(Mirrored):
    def __init__(self, config: Config, store: Store, claim: Claim, tell: Tell) -> None:
        super().__init__(config)
        self._store, self._tell = store, tell
        keep = config.run.keep_checkpoints
        self.uploads: Uploads = Uploads(config.folder, store, claim, keep, tell)
        self._is_there = self.ended = False

    def resolve(self) -> Path | None:
        """Return what `resume` means; for `auto` the checkpoint of the mirror where that is further.

        Raises:
            UserError: as `checkpoint.resolve`, or the mirror has no whole checkpoint.
            StoreFailed: the mirror could not be read.
        """
        start = super().resolve()
        if self._config.resume == "auto":
            start = download_newest(self._store, self._config.folder, start, self._tell)
        found = manifests(self._store, attempts(self._store))
        self._is_there = bool(start and found and found[-1].checkpoint == start.name)
        return start

    def finish(self) -> bool:
        """Copy what is not there yet, and wait for it; nothing where the run wrote no checkpoint.

        Raises:
            UserError: it could not be copied.
        """
        self.ended = True
        if self._is_there and not self.uploads.begun:
            return False
        self.uploads.finish()
        return True


class _OfOthers(Mirrored):
    def resolve(self) -> Path | None:
        """Return None: the main rank tells."""
        return None


@contextmanager
def open_mirror(config: Config, tell: Tell) -> Iterator[Mirrored]:
    """Claim the mirror of a run, if it has one; an error of the run still waits for copies under way.

    Raises:
        UserError: another process writes the mirror, its store cannot be used, or it has checkpoints
            and the config asks for a new run.
    """
    if config.run.mirror is None:
        yield Mirrored(config)
        return
    if not distributed.is_main():
        yield _OfOthers(config)
        return
    store = open_store(f"{config.run.mirror.rstrip('/')}/{config.folder.name}")
    if config.resume == "never" and (found := manifests(store, attempts(store))):
        raise UserError(
            f"run.mirror: {store.url} has a run with {found[-1].checkpoint}: go on with it "
            "(resume=auto), choose another run.name, or delete it"
        )
    claim = Claim(store, config.folder, tell)
    try:
        run = _OfMain(config, store, claim, tell)
        try:
            yield run
        except Exception as error:
            if run.uploads.begun and not run.ended and not isinstance(error, fence.Superseded):
                with contextlib.suppress(Exception):  # told already, and the run's own error counts
                    run.finish()
            raise
    finally:
        claim.release()
