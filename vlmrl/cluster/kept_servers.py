"""The servers of several keepers, as a rank sees them: where they are, and what has become of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from vlmrl.cluster.ray_host import own_address
from vlmrl.cluster.server_keeper import WATCH_S, State, Status, digest_of, name_of
from vlmrl.errors import UserError
from vlmrl.system.extras import import_extra

__all__ = ["KeptServers", "fleet_of"]

PLACE_S = 600.0
"""Seconds within which some keeper must have found a place."""
ANSWER_S = 10.0
"""Seconds within which a keeper answers; one that does not is left out, with its node."""

Ask = Callable[..., Any]
"""Calls a method of a keeper, by name, with arguments; None if the keeper does not answer."""


def fleet_of(count: int, namespace: str) -> KeptServers:
    """Return the servers of the `count` keepers that were started in this namespace.

    Raises:
        UserError: none of them answers.
    """
    ray = import_extra("ray", "ray")
    keepers = [_asker(ray, ray.get_actor(name_of(number), namespace)) for number in range(count)]
    deadline = time.monotonic() + PLACE_S
    while time.monotonic() < deadline:
        for keeper in keepers:
            if (token := keeper("token")) is not None:
                return KeptServers(keepers, token, own_address())
        time.sleep(WATCH_S)
    raise UserError(
        f"cluster.serve: no node had room for a server within {PLACE_S:g} s: see cluster.serve.gpus"
    )


def _asker(ray: Any, keeper: Any) -> Ask:
    last: list[Any] = []

    def ask(method: str, *arguments: Any) -> Any:
        if last and not ray.wait(last, timeout=0)[0]:
            return None  # it has not answered since, or has no place yet
        last[:] = [getattr(keeper, method).remote(*arguments)]
        try:
            return ray.get(last[0], timeout=ANSWER_S)
        except ray.exceptions.RayError:
            return None

    return ask


class KeptServers:
    """The servers of several keepers: what engine `vllm_server` calls a fleet."""

    def __init__(self, keepers: Sequence[Ask], token: str, address: str) -> None:
        """Use these keepers, whichever of them live; servers reach this machine at `address`."""
        self.token, self.address = token, address
        self._keepers = list(keepers)
        self._model: tuple[Mapping[str, Any], Mapping[str, bytes]] = {}, {}
        self._digest = ""
        self._seen: list[Status | None] = [None] * len(self._keepers)
        self._starts: list[dict[str, int]] = [{} for _ in self._keepers]
        self._restarts: int | None = None

    def launch(self, given: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
        """See `Fleet`."""
        self._model, self._digest = (given, files), digest_of(given, files)
        for keeper in self._keepers:
            keeper("launch", given, files)

    def look(self) -> tuple[list[str], int]:
        """See `Fleet`. A keeper that is new, since its node was lost, is told what to serve."""
        found = self._seen = [keeper("status") for keeper in self._keepers]
        self._count_starts()
        for keeper, status in zip(self._keepers, found, strict=True):
            if status is not None and status.model != self._digest:
                keeper("launch", *self._model)
        own = [s for s in found if s is not None and s.model == self._digest]
        urls = [s.url for s in own if s.state in (State.STALE, State.READY)]
        dead = [s for s in own if s.state is State.DEAD]
        starting = len(found) - len(urls) - len(dead)
        if not urls and not starting:
            raise UserError(f"cluster.serve: every server was given up: {dead[0].words}")
        return urls, starting

    def restart(self, url: str) -> None:
        """See `Fleet`."""
        for keeper in self._keepers:
            keeper("restart", url)

    def synced(self, urls: Sequence[str], version: int) -> None:
        """See `Fleet`."""
        for url in urls:
            for keeper in self._keepers:
                keeper("synced", url, version)
        answering = (State.STALE, State.READY)
        for number, seen in enumerate(self._seen):
            if seen is not None and seen.state in answering:
                now = State.READY if seen.url in urls else State.STALE
                self._seen[number] = replace(seen, state=now)

    def metrics(self) -> dict[str, float]:
        """Return the metrics `servers/...`: states when last looked at, and restarts since the last call."""
        before, self._restarts = self._restarts, self._count_restarts()
        states = Counter("silent" if s is None else s.state.value for s in self._seen)
        names = [*(state.value for state in State), "silent"]
        found = {f"servers/{name}": float(states[name]) for name in names}
        return {**found, "servers/restarts": float(self._restarts - (before or 0))}

    def _count_starts(self) -> None:
        for known, status in zip(self._starts, self._seen, strict=True):
            if status is not None and status.starts:
                known[status.keeper] = status.starts
        if self._restarts is None:  # those before belong to earlier attempts
            self._restarts = self._count_restarts()

    def _count_restarts(self) -> int:
        """Return how often servers were started again, by their keepers or those that came after these."""
        return sum(max(0, sum(known.values()) - 1) for known in self._starts)
