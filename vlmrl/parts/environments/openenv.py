"""Any environment behind an OpenEnv server."""

from __future__ import annotations

import base64
import io
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from vlmrl.errors import UserError, import_extra
from vlmrl.interaction.environment import (
    Environment,
    Move,
    MoveOutcome,
    Part,
    Refused,
    Sample,
    State,
    seed_for,
)
from vlmrl.media.image import decode_image
from vlmrl.schema import Space

MAX_SESSIONS = 900
"""Connections that a process keeps at a time, below the files that it may usually open."""
CLOSE_S = 2.0
"""Seconds that a server has to answer that a connection ends."""
_connections: dict[str, Any] = {}
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class OpenenvSession:
    """Which connection of this process the world is behind, and what it last showed, as JSON."""

    name: str
    shown: str
    moves: int = 0


@dataclass(frozen=True)
class Openenv(Environment):
    """An environment behind an OpenEnv server, over its own WebSocket messages.

    The world lives in the server, one connection for each rollout: it ends with the rollout, or with the
    process that opened it, so a rollout cannot be moved or repeated. What the server calls invalid is told
    to the policy; any other error is a fault. Needs `pip install 'vlmrl-perception[openenv]'`.

    Source: OpenEnv's own client and server (github.com/meta-pytorch/OpenEnv): messages reset, step and close.

    Raises:
        UserError: the address is none of a server.
    """

    actions: ClassVar[tuple[str, ...]] = ("act",)
    restartable: ClassVar[bool] = False

    url: str
    """Address of the server: `http://`, `https://`, `ws://` or `wss://`."""
    action: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """JSON schema of an action's fields (`properties`, `required`); empty: one text, `message`."""
    instruction: str = "Reach the goal."
    """What the policy is asked to do."""
    show: tuple[str, ...] = ()
    """Fields of an observation that are told; empty: all but images."""
    images: tuple[str, ...] = ()
    """Fields of an observation that hold an image as base64 text."""
    reset_options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What `reset` is sent besides the seed."""
    timeout_s: float = 30.0
    """Seconds for an answer of the server."""
    max_moves: int = 100
    """Actions after which the world ends."""

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://", "ws://", "wss://")):
            raise ValueError(f"url: expected http(s):// or ws(s)://, got {self.url!r}")

    @property
    def time_limit_s(self) -> float:
        """Return the seconds that the actions of one turn may take: eight at most, and the reset."""
        return 10 * self.timeout_s

    def prepare(self) -> None:
        """Load what speaks to the server."""
        import_extra("websockets.sync.client", "openenv")

    def reset(self, sample: Sample, seed: int) -> OpenenvSession:
        """Open a connection and start a world of a seed.

        Raises:
            UserError: as many rollouts as a process may have are going on.
        """
        client = import_extra("websockets.sync.client", "openenv")
        if len(_connections) >= MAX_SESSIONS:
            raise UserError(
                f"openenv {self.url}: expected at most {MAX_SESSIONS} rollouts at a time; lower "
                "rollout.prompts or rollout.group_size"
            )
        address = f"ws{self.url.removeprefix('http').removeprefix('ws').rstrip('/')}/ws"
        limits = {"open_timeout": self.timeout_s, "close_timeout": CLOSE_S, "max_size": 100 * 2**20}
        opened = client.connect(address, **limits)
        name = f"{os.getpid()}-{next(_numbers)}"
        _connections[name] = opened
        seed = seed_for(sample, seed) % 2**31
        try:
            reply = self._ask(name, {"type": "reset", "data": {"seed": seed, **self.reset_options}})
        except BaseException:
            _let_go(name)
            raise
        return OpenenvSession(name, json.dumps(reply.get("observation")))

    def observe(self, state: OpenenvSession) -> Sequence[Part]:
        """Return the images and the fields of the last observation."""
        seen = json.loads(state.shown)
        if not isinstance(seen, dict):
            return [json.dumps(seen)]
        parts: list[Part] = [
            decode_image(io.BytesIO(base64.b64decode(seen[key])), key) for key in self.images
        ]
        names = self.show or [key for key in seen if key not in (*self.images, "metadata")]
        seen_keys = {key: seen[key] for key in names if key in seen}
        texts = [
            value if isinstance(value, str) else json.dumps(value) for value in seen_keys.values()
        ]
        return [
            *parts,
            *(texts if len(texts) == 1 else [json.dumps(seen_keys)] if seen_keys else []),
        ]

    def task(self, state: OpenenvSession) -> str:
        """Return what to do."""
        return self.instruction

    def schemas(self, space: Space = "norm1") -> list[dict[str, Any]]:
        """Return the one action, with the fields that the server takes."""
        text = {"properties": {"message": {"type": "string"}}, "required": ["message"]}
        body = {"type": "object", **(self.action or text)}
        function = {"name": "act", "description": "Act in the environment.", "parameters": body}
        return [{"type": "function", "function": function}]

    def step(self, state: OpenenvSession, move: Move) -> MoveOutcome:
        """Send an action to the server."""
        if move.name not in self.actions:
            raise Refused(f"there is no action {move.name!r:.60}: expected act")
        reply = self._ask(state.name, {"type": "step", "data": dict(move.arguments)})
        there = OpenenvSession(state.name, json.dumps(reply.get("observation")), state.moves + 1)
        done = bool(reply.get("done")) or there.moves >= self.max_moves
        # OpenEnv's servers state no reward as null; whatever else they state is the reward.
        reward = 0.0 if reply.get("reward") is None else reply["reward"]
        return MoveOutcome(there, [] if done else self.observe(there), reward, done)

    def close(self, state: State) -> None:
        """Close the connection."""
        _let_go(state.name)

    def _ask(self, name: str, message: Mapping[str, object]) -> dict[str, Any]:
        """Send a message and return the data of the answer.

        Raises:
            Refused: the server calls it invalid.
            ConnectionError: it states another error, or the connection is gone.
        """
        if name not in _connections:
            raise ConnectionError("the world's connection ended with its process")
        _connections[name].send(json.dumps(message))
        answer = json.loads(_connections[name].recv(timeout=self.timeout_s))
        data = answer.get("data") or {}
        if answer.get("type") == "error":
            complaint = f"{data.get('code')}: {data.get('message')}"
            if data.get("code") == "VALIDATION_ERROR" and message["type"] == "step":
                raise Refused(" ".join(complaint.split()))
            raise ConnectionError(f"the server states {complaint:.300}")
        if answer.get("type") != "observation":
            raise UserError(f"openenv {self.url}: expected an observation, got {answer!r:.100}")
        return data


def _let_go(name: str) -> None:
    """Close a connection, which the server may have closed before."""
    opened = _connections.pop(name, None)
    if opened is None:
        return
    closed = import_extra("websockets.exceptions", "openenv").ConnectionClosed
    try:
        opened.send(json.dumps({"type": "close"}))
    except (closed, OSError):  # the server has let go of it already
        pass
    finally:
        opened.close()
