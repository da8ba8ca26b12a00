"""A vLLM server that takes weights from a trainer: `python -m vlmrl.engines.serve --model FOLDER`.

Engine `vllm_server` starts it as a child, or connects to ones that were started by hand. All
arguments are vLLM's own. It listens on this machine only, unless `--host` says otherwise; whoever
has the token in VLMRL_SERVER_TOKEN may do everything with it, others may ask whether it lives.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import secrets
import shutil
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import torch

from vlmrl.engines.vllm_parts.adapted_vllm import import_vllm
from vlmrl.engines.vllm_parts.requests import LOADER, register_loader
from vlmrl.errors import UserError
from vlmrl.system.processes import TOKEN, end_with

PARENT = "VLMRL_SERVER_PARENT"
FOLDER = "VLMRL_SERVER_FOLDER"
"""Environment variables of a child server: the process without which it must not live, and the folder
that goes with that process."""

READ_WITH = {
    "video": {"video_backend": LOADER},
    "audio": {"audio_backend": "soundfile"},
}
"""Readers that change nothing: videos and audio arrive as the trainer has them."""

REQUIRED = (
    *("--host", "127.0.0.1"),
    *("--middleware", "vlmrl.engines.serve.TokenGuard"),
    *("--worker-extension-cls", "vlmrl.engines.vllm_parts.worker.Worker"),
    *("--weight-transfer-config", '{"backend": "vlmrl"}'),
    *("--logprobs-mode", "raw_logprobs"),
    *("--generation-config", "vllm"),
    *("--media-io-kwargs", json.dumps(READ_WITH)),
    "--enable-scale-out",
    "--disable-uvicorn-access-log",
)
"""Arguments that the trainer relies on; what is given on the command line comes after them."""

OPEN_PATHS = ("/health",)

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class TokenGuard:
    """ASGI middleware: 401 for every request without the token, but for a look at `/health`.

    The token is that of the environment, if none is given. vLLM's own guard leaves the routes open that
    change weights.
    """

    def __init__(self, app: Any, token: str | None = None) -> None:
        self._app = app
        self._digest = _digest((token or os.environ[TOKEN]).encode())

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        """Serve or refuse one request."""
        token = dict(scope.get("headers", ())).get(b"authorization", b"").removeprefix(b"Bearer ")
        known = secrets.compare_digest(_digest(token), self._digest)
        if scope["type"] == "lifespan" or scope["path"] in OPEN_PATHS or known:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b"no valid token"})


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def main() -> None:
    """Serve until SIGTERM or SIGINT, or until the trainer that started this is gone."""
    if not os.environ.get(TOKEN):
        raise SystemExit(f"set {TOKEN} to a secret: who knows it can change the weights served")
    os.environ.setdefault("VLLM_SERVER_DEV_MODE", "1")  # the routes that pause, resume and call
    os.environ.setdefault("VLLM_HOST_IP", "127.0.0.1")  # for what the server's own parts open
    if torch.version.cuda is None:
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # one process less
    # Spawned workers import this module, and with it the shim and the watch; forked ones would not.
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    sys.argv[1:1] = REQUIRED
    if torch.version.cuda is None:
        sys.argv[1:1] = ["--no-enable-chunked-prefill"]  # for the reason given in `options.py`
    from vllm.entrypoints.launchers.api_server import entry

    entry.main()


if __name__ in ("__main__", "__mp_main__"):
    if __name__ == "__mp_main__":  # a worker of the server; multiprocessing knows no parent yet
        end_with(os.getppid())
    elif PARENT in os.environ:
        left = functools.partial(shutil.rmtree, os.environ[FOLDER], ignore_errors=True)
        end_with(int(os.environ[PARENT]), left)
    try:
        import_vllm()
    except UserError as error:
        raise SystemExit(str(error)) from error
    register_loader()

if __name__ == "__main__":
    main()
