"""One process writes a mirror: a second is refused while it lives, and it stops at a successor.

Object stores that fsspec knows have no lock and, through it, no conditional write. So a claim is an object
of its own, `attempt.json`, with one beside it, `alive`, that its owner keeps changing. Whoever comes later
watches that one for a while, by no clock but its own. Two that begin at the same moment see each other's
claims, if the store lists what was written, and one of them gives way. An owner that was cut off for longer
finds the claim of its successor before it writes another manifest or deletes anything. Between that look and
the write it may still write one manifest: into its own folder, behind that of the successor.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vlmrl.errors import UserError
from vlmrl.policy.mirror.manifests import Attempt, attempts
from vlmrl.policy.mirror.store import Missing, Store, StoreFailed
from vlmrl.runs import run_lock
from vlmrl.system.launched import fence

__all__ = ["Claim"]

BEAT_S = 20.0
"""Seconds between two signs of life."""
WATCH_S = 75.0
"""Seconds without one after which an owner elsewhere is taken for dead."""
LOOK_S = 2.0
"""Seconds between two looks for a sign."""
ENDED = b"ended\n"


class Claim:
    """The right to write to a mirror; made before anything of it is used, and released at the end.

    Raises:
        UserError: another process writes there; the line names it.
        StoreFailed: the store cannot be read or written.
    """

    def __init__(self, store: Store, folder: Path, tell: Callable[[str], None]) -> None:
        self._store = store
        before = attempts(store)
        if before:
            _require_ended(store, before[-1], folder, tell)
        number = before[-1].number + 1 if before else 1
        self.attempt = Attempt(number, secrets.token_hex(3))
        launched = {"folder": str(folder.absolute()), "launched": fence.attempt()}
        said = json.dumps({**run_lock.describe_process(), **launched}, indent=1)
        store.write(f"{self.attempt.folder}/alive", b"0\n")
        store.write(f"{self.attempt.folder}/attempt.json", said.encode())
        if (
            newest := max([*attempts(store), self.attempt])
        ) != self.attempt:  # both began at this moment
            names = [f"{self.attempt.folder}/{name}" for name in ("attempt.json", "alive")]
            store.delete(names)
            raise UserError(_refusal(store, _owner(store, newest)))
        self._stop = threading.Event()
        self._beating = threading.Thread(target=self._beat, daemon=True)
        self._beating.start()

    def require_newest(self) -> None:
        """Check that no later attempt has begun.

        Raises:
            UserError: one has; the line names it.
            StoreFailed: the store cannot be read.
        """
        found = attempts(self._store)
        if found and found[-1] > self.attempt:
            who = _describe(_owner(self._store, found[-1]))
            raise UserError(
                f"run.mirror: {self._store.url}: {who} writes it now, because this process gave no sign "
                "of life; the run stops here, and what it has written stays in its folder"
            )

    def release(self) -> None:
        """Stop the signs of life, and say so: the next process need not wait for them."""
        self._stop.set()
        self._beating.join()
        with contextlib.suppress(StoreFailed):
            self._store.write(f"{self.attempt.folder}/alive", ENDED)

    def _beat(self) -> None:
        number = 0
        while not self._stop.wait(BEAT_S):
            number += 1
            with contextlib.suppress(StoreFailed):  # uploads tell of it
                self._store.write(f"{self.attempt.folder}/alive", f"{number}\n".encode())


def _require_ended(
    store: Store, attempt: Attempt, folder: Path, tell: Callable[[str], None]
) -> None:
    owner, alive = _owner(store, attempt), _read(store, attempt, "alive")
    if alive == ENDED or run_lock.has_ended(owner) or _was_superseded(owner, folder):
        return
    who = _describe(owner)
    tell(f"mirror {store.url}: looking for {WATCH_S:g} s whether {who} still writes it")
    end = time.monotonic() + WATCH_S
    while time.monotonic() < end:
        time.sleep(LOOK_S)
        now = _read(store, attempt, "alive")
        if now == ENDED:
            return
        if now != alive:
            raise UserError(_refusal(store, owner))


def _was_superseded(owner: dict[str, Any], folder: Path) -> bool:
    """Return whether the owner is an earlier attempt of the `vlmrl launch` that made this process."""
    launched = owner.get("launched")
    if not isinstance(launched, int) or owner.get("folder") != str(folder.absolute()):
        return False
    return 0 < launched < fence.attempt()


def _refusal(store: Store, owner: dict[str, Any]) -> str:
    return (
        f"run.mirror: {store.url}: another run writes it ({_describe(owner)}); wait for it, stop it, or "
        "choose another run.name"
    )


def _describe(owner: dict[str, Any]) -> str:
    return run_lock.name_process(owner) if owner else "another process"


def _owner(store: Store, attempt: Attempt) -> dict[str, Any]:
    try:
        found = json.loads(_read(store, attempt, "attempt.json"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _read(store: Store, attempt: Attempt, name: str) -> bytes:
    """Return an object of a claim; nothing where it is not there (yet)."""
    try:
        return store.read(f"{attempt.folder}/{name}")
    except Missing:
        return b""
