"""A server on this machine, or behind a token, and how it answers POST requests with a JSON body."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from vlmrl.errors import UserError
from vlmrl.system.processes import TOKEN

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def token_for(host: str) -> str | None:
    """Return the secret that clients must send; on the loopback there may be none.

    Raises:
        UserError: other machines could ask without one.
    """
    token = os.environ.get(TOKEN) or None
    if token is None and host not in LOOPBACK:
        raise UserError(f"--host {host} lets other machines ask: set {TOKEN} to a secret first")
    return token


def listen(app: Starlette, host: str, port: int, what: str, path: str) -> None:
    """Serve until SIGTERM or Ctrl-C; print `what` is served, and the address with `path`.

    Raises:
        UserError: the port is taken, or the host is none of this machine.
    """
    settings = uvicorn.Config(app, host=host, port=port, log_level="warning", access_log=False)
    try:
        listening = settings.bind_socket()
    except SystemExit as error:  # uvicorn has said why
        raise UserError(f"--host {host} --port {port}: cannot listen there") from error
    listening.listen()  # who asks from here on waits for the server to start
    at = listening.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    print(f"{what} http://{shown}:{at}{path} (Ctrl-C ends it)", flush=True)
    # uvicorn closes in good order, and then raises the signal that it was ended by.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with listening, contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(settings).run(sockets=[listening])


MAX_BYTES = 256 * 2**20
"""A longer request is refused unread."""


class OtherModel(UserError):
    """A request that asks another model than the one that is served."""


async def answer(
    request: Request,
    read: Callable[[Any], tuple[Future[Any], Callable[[Any], Response]]],
) -> Response:
    """Return the reply to a request; `read` turns its body into work, and what makes a reply of its result.

    A mistake in the request is status 400 (404: it asks another model), a closing server 503, and what
    fails otherwise 500, of which standard error says more.
    """
    if no := _unread(request):
        return no
    try:
        work, reply = read(json.loads(await request.body()))
    except OtherModel as mistake:
        return _error(404, str(mistake))
    except (ValueError, RecursionError, UserError) as mistake:
        return _error(400, str(mistake))
    try:
        return reply(await asyncio.wrap_future(work))
    except UserError as mistake:
        return _error(400, str(mistake))
    except (asyncio.CancelledError, CancelledError):
        return _error(503, "the server is closing")
    except Exception as fault:
        print(f"failed: {type(fault).__name__}: {fault}", file=sys.stderr, flush=True)
        return _error(500, f"{type(fault).__name__}: the server's log says more")


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
