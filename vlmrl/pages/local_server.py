"""A server on this machine, or behind a token, and how it answers POST requests with a JSON body.

A guest holds little and not for long: heads, bodies and readers that do not come on are cut, a body is read
where there is room for it, and who has left is forgotten.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import math
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from uvicorn.protocols.http.h11_impl import H11Protocol

from vlmrl.errors import UserError
from vlmrl.system.processes import TOKEN

LOOPBACK = ("127.0.0.1", "[::1]", "localhost")
"""Names of this machine, as requests state them."""
WAIT_S = 15.0
"""Seconds within which a head must arrive, and some of a reply must be read."""
MAX_CONNECTIONS = 512
"""Connections at a time; a request on a further one is status 503."""
SLOWEST = 2**12
"""Bytes a second of a reply that a client must read."""


def trusted_hosts(host: str) -> tuple[str, ...]:
    """Return the names that requests to `host` may be sent to: on the loopback its own, else any."""
    address = host.strip("[]")
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(address).is_loopback:
            return (*LOOPBACK, f"[{address}]" if ":" in address else address)
    return LOOPBACK if address == "localhost" else ("*",)


def token_for(host: str) -> str | None:
    """Return the secret that clients must send; on the loopback there may be none.

    Raises:
        UserError: other machines could ask without one.
    """
    token = os.environ.get(TOKEN) or None
    if token is None and trusted_hosts(host) == ("*",):
        raise UserError(f"--host {host} lets other machines ask: set {TOKEN} to a secret first")
    return token


class TimedConnection(H11Protocol):
    """A connection that is cut once no head has come for `WAIT_S`, or a reply is hardly read.

    uvicorn by itself times the pause between two requests alone.
    """

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a head."""
        super().connection_made(transport)
        self._wait(math.inf)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        super().connection_lost(exc)
        if self._timer:
            self._timer.cancel()

    def on_response_complete(self) -> None:
        """Begin to wait for the next head."""
        super().on_response_complete()
        self._wait(math.inf)

    def _wait(self, unsent: float) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = self.loop.call_later(WAIT_S, self._look, unsent)

    def _look(self, before: float) -> None:
        unsent = self.transport.get_write_buffer_size()
        answering = self.cycle is not None and not self.cycle.response_complete
        if before - unsent < WAIT_S * SLOWEST if unsent else not answering:
            self.transport.abort()
        else:
            self._wait(unsent or math.inf)


def server_settings(app: Starlette, host: str, port: int) -> uvicorn.Config:
    """Return how we serve: quietly, HTTP alone, with limits."""
    return uvicorn.Config(
        app,
        host=host.strip("[]"),
        port=port,
        http=TimedConnection,
        ws="none",
        limit_concurrency=MAX_CONNECTIONS,
        log_level="warning",
        access_log=False,
    )


def listen(app: Starlette, host: str, port: int, what: str, path: str) -> None:
    """Serve until SIGTERM or Ctrl-C; print `what` is served, and the address with `path`.

    Raises:
        UserError: the port is taken, or the host is none of this machine.
    """
    settings = server_settings(app, host, port)
    try:
        listening = settings.bind_socket()
    except SystemExit as error:  # uvicorn has said why
        raise UserError(f"--host {host} --port {port}: cannot listen there") from error
    # asyncio sees that a socket is TCP only if its protocol is stated, and uvicorn does not: without this,
    # each reply but the first of a connection waits 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listening.listen()  # who asks from here on waits for the server to start
    at = listening.getsockname()[1]
    shown = f"[{settings.host}]" if ":" in settings.host else host
    print(f"{what} http://{shown}:{at}{path} (Ctrl-C ends it)", flush=True)
    # uvicorn closes in good order, and then raises the signal that it was ended by.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with listening, contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(settings).run(sockets=[listening])


# --------------------------------------------------------------------------------------------------
# Requests with a JSON body.


MAX_BYTES = 128 * 2**20
"""A longer request is refused unread."""
MAX_HELD = 4 * MAX_BYTES
"""Bytes of the requests that are read and answered at a time; the next one waits unread."""
SMALL = 2**20
"""A shorter request needs no room, so that long ones do not hold it up."""
SLOWEST_BODY = 2**21
"""Bytes a second at which a body must arrive, after `WAIT_S`."""
MAX_ITEMS = 2**21
"""Commas and brackets of a request; its objects take more memory than its text."""


class OtherModel(UserError):
    """A request that asks another model than the one that is served."""


Read = Callable[[Any], tuple[Future[Any], Callable[[Any], Response]]]
"""Turns the JSON of a request into work, and what makes a reply of its result."""


class Desk:
    """Where the requests of one server are read, and wait for their answers."""

    def __init__(self) -> None:
        self._left, self._change = MAX_HELD, asyncio.Condition()
        # One at a time: reading a body takes several times its memory.
        self._reader = ThreadPoolExecutor(1, "requests")

    async def answer(self, request: Request, read: Read) -> Response:
        """Return the reply to a request.

        A mistake in the request is status 400 (404: it asks another model), a body that does not come 408,
        one without room or a closing server 503, and what fails otherwise 500, of which standard error
        says more.
        """
        if no := _unread(request):
            return no
        length = int(request.headers["content-length"])
        async with contextlib.AsyncExitStack() as held:
            try:
                if length > SMALL:
                    room = held.enter_async_context(self._room(length))
                    await asyncio.wait_for(room, WAIT_S)
            except asyncio.TimeoutError:
                return _error(503, "the server is busy with other long requests")
            seconds = WAIT_S + length / SLOWEST_BODY
            body = bytearray()
            try:
                await asyncio.wait_for(_fill(body, request), seconds)
            except asyncio.TimeoutError:
                return _error(408, f"expected the whole body within {seconds:.0f} s")
            except ClientDisconnect:
                return Response()  # that nobody reads
            return await self._reply(request, body, read)

    @contextlib.asynccontextmanager
    async def _room(self, size: int) -> AsyncIterator[None]:
        async with self._change:
            await self._change.wait_for(lambda: self._left >= size)
            self._left -= size
        try:
            yield
        finally:
            self._left += size
            async with self._change:
                self._change.notify_all()

    async def _reply(self, request: Request, body: bytearray, read: Read) -> Response:
        loop = asyncio.get_running_loop()
        try:
            work, reply = await loop.run_in_executor(self._reader, _read, body, read)
            done, left = asyncio.wrap_future(work), asyncio.ensure_future(request.receive())
            try:
                await asyncio.wait((done, left), return_when=asyncio.FIRST_COMPLETED)
                return reply(done.result()) if done.done() else Response()
            finally:
                left.cancel()
                done.cancel()
        except OtherModel as mistake:
            return _error(404, str(mistake))
        except UserError as mistake:
            return _error(400, str(mistake))
        except (asyncio.CancelledError, CancelledError):
            return _error(503, "the server is closing")
        except Exception as fault:
            print(f"failed: {type(fault).__name__}: {fault}", file=sys.stderr, flush=True)
            return _error(500, f"{type(fault).__name__}: the server's log says more")


async def _fill(body: bytearray, request: Request) -> None:
    async for part in request.stream():
        body += part


def _read(body: bytearray, read: Read) -> tuple[Future[Any], Callable[[Any], Response]]:
    """Return what `read` makes of a body, which is empty then; a mistake is a UserError."""
    items = sum(map(body.count, (b",", b"[", b"{")))
    if items > MAX_ITEMS:
        raise UserError(f"expected at most {MAX_ITEMS} commas and brackets, got {items}")
    try:
        content = json.loads(body)
        body.clear()
        return read(content)
    except (ValueError, RecursionError) as mistake:
        raise UserError(str(mistake)) from mistake


def _unread(request: Request) -> Response | None:
    """Return why a request is not even read, if so."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        return _error(415, "expected Content-Type: application/json")
    length = request.headers.get("content-length", "")
    if not length.isdecimal() or int(length) > MAX_BYTES:
        return _error(413, f"expected a Content-Length of at most {MAX_BYTES} bytes")
    return None


def _error(status: int, message: str) -> JSONResponse:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return JSONResponse({"error": {"message": message, "type": kind, "code": status}}, status)
