"""A server on this machine, or behind a token: what `vlmrl serve` and `vlmrl watch` have in common."""

from __future__ import annotations

import contextlib
import os
import signal

import uvicorn
from starlette.applications import Starlette

from vlmrl.errors import UserError
from vlmrl.system.launched.network import TOKEN

__all__ = ["LOOPBACK", "listen", "token_for"]

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
