"""POST requests with a JSON body: which are not read, and how mistakes and faults are answered."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from vlmrl.errors import UserError

__all__ = ["OtherModel", "answer"]

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
        found, reply = read(json.loads(await request.body()))
    except OtherModel as mistake:
        return _error(404, str(mistake))
    except (ValueError, RecursionError, UserError) as mistake:
        return _error(400, str(mistake))
    try:
        return reply(await asyncio.wrap_future(found))
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
