"""`vlmrl watch`: pages that follow runs as they train; they read run folders and write nothing.

With `--start` there is one more, which begins runs (`start_server`).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import secrets
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from vlmrl.errors import UserError
from vlmrl.features.report.gallery import FacetChoice
from vlmrl.features.report.growing import AXES, Across
from vlmrl.features.report.live_pages import (
    MAX_COMPARED,
    SCRIPTS,
    compared,
    newer_parts,
    run_page,
    runs_page,
    runs_table,
    warm_up,
)
from vlmrl.features.report.live_run import LiveRun
from vlmrl.features.report.page import HERE
from vlmrl.features.report.row_pages import row_answers
from vlmrl.features.report.start_server import start_routes
from vlmrl.features.report.started_runs import StartedRuns
from vlmrl.pages.local_server import listen, token_for, trusted_hosts
from vlmrl.pages.render import script_hash

POLICY = (
    "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'; script-src '{}'"
)
Answer = Callable[[Request], Response]
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
ASKING = {"WWW-Authenticate": 'Basic realm="vlmrl watch"'}


class WatchedRuns:
    """The runs of a folder by name, looked for again each time; or the one run that the folder is."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: dict[str, LiveRun] = {}
        self._alone = False
        warm_up()

    @property
    def alone(self) -> bool:
        """Return whether the folder is a run; one that was stays one, even if it is gone."""
        self._alone = self._alone or (self._folder / "config.json").is_file()
        return self._alone

    def names(self) -> list[str]:
        """Return the runs that there are, the one written to last first."""
        if self.alone:
            return [self._folder.absolute().name]
        folders = [path.parent for path in self._folder.glob("*/config.json")]
        return [path.name for path in sorted(folders, key=_written, reverse=True)]

    def folder_of(self, name: str) -> Path | None:
        """Return the folder of a run; None if there is no such run."""
        return self._place(name) if name in self.names() else None

    def get(self, name: str) -> LiveRun | None:
        """Return a run with what is new read; None if there is no such run."""
        return self._refresh(name) if name in self.names() else None

    def all(self) -> dict[str, LiveRun]:
        """Return every run with what is new read, the one written to last first."""
        self._runs = {name: self._refresh(name) for name in self.names()}
        return self._runs

    def _place(self, name: str) -> Path:
        return self._folder if self.alone else self._folder / name

    def _refresh(self, name: str) -> LiveRun:
        run = self._runs.setdefault(name, LiveRun(self._place(name)))
        run.refresh()
        return run


def _written(folder: Path) -> float:
    """Return when a run was written to; 0 if it is gone by now."""
    times = [0.0]
    for name in ("metrics.jsonl", "sft.jsonl", "config.json"):
        with contextlib.suppress(OSError):
            times.append((folder / name).stat().st_mtime)
    return max(times)


def watch(folder: Path, host: str, port: int, start: bool = False) -> None:
    """Serve the pages of the runs in a folder until SIGTERM or Ctrl-C; with `start`, one to begin runs.

    Raises:
        UserError: there is no such folder, other machines could look without a token, or begin runs.
    """
    token, hosts = token_for(host), trusted_hosts(host)
    if start and hosts == ("*",):
        raise UserError(
            f"--start --host {host} would let other machines run code here: listen at 127.0.0.1, and "
            f"come by `ssh -L {port}:127.0.0.1:{port} MACHINE`"
        )
    if start and (folder / "config.json").is_file():
        raise UserError(f"{folder}: --start expects a folder of runs, got a run")
    if start:
        folder.mkdir(parents=True, exist_ok=True)
    if not folder.is_dir():
        raise UserError(f"{folder}: expected a run folder or a folder of runs, got none")
    starting = StartedRuns(folder), token or secrets.token_urlsafe(24)
    app = build_watch_app(WatchedRuns(folder), token, hosts, starting if start else None)
    listen(
        app, host, port, f"watching {folder} at", f"/start#{quote(starting[1])}" if start else ""
    )


def build_watch_app(
    runs: WatchedRuns,
    token: str | None,
    hosts: tuple[str, ...],
    starting: tuple[StartedRuns, str] | None = None,
) -> Starlette:
    """Return the server: `/`, `/run/NAME`, and the addresses at which their scripts ask for what is new.

    These are read-only. With a token, a browser asks for it as the password of any user. `starting` adds
    the page that begins runs, and says the token that this needs.
    """
    guarded = _guard(token)

    def index(_: Request) -> Response:
        if runs.alone:
            return RedirectResponse(f"/run/{runs.names()[0]}")
        return HTMLResponse(runs_page(starting is not None))

    def page(request: Request) -> Response:
        run = runs.get(name := request.path_params["name"])
        begun = run if run and run.config else None
        html = run_page(name, begun, runs.alone).encode("utf-8", "replace")
        return HTMLResponse(html, 200 if begun else 404)

    def changes(request: Request) -> Response:
        run = runs.get(name := request.path_params["name"])
        if run is None or not run.config:
            mistake = run.mistake if run else f"no run {name!r:.80} here"
            return JSONResponse({"error": mistake or "the run has not begun"}, 404)
        return _reply(newer_parts(run, _seen(request), FacetChoice.of(request.query_params)))

    def all_changes(request: Request) -> Response:
        seen, known = _seen(request), runs.all()
        chosen = [n for n in request.query_params.getlist("run") if n in known] or list(known)
        chosen = chosen[:MAX_COMPARED]
        asked = request.query_params.get("across")
        across: Across = next((axis for axis in AXES if axis == asked), "step")
        shown = {name: known[name] for name in chosen if known[name].config}
        parts = {"runs": runs_table(known, chosen), "compared": compared(shown, across)}
        digests = {
            name: hashlib.sha256(html.encode("utf-8", "replace")).hexdigest()[:16]
            for name, html in parts.items()
        }
        newer = (name for name in parts if seen.get(name) != digests[name])
        return _reply({name: (digests[name], parts[name]) for name in newer})

    routes = [
        Route("/", guarded(index)),
        Route("/changes", guarded(all_changes)),
        Route("/run/{name}", guarded(page)),
        Route("/run/{name}/changes", guarded(changes)),
        *(
            Route(f"/run/{{name}}/{end}", guarded(answer))
            for end, answer in row_answers(runs.folder_of)
        ),
    ]
    if starting is not None:
        routes += start_routes(*starting, runs.all, guarded)
    guard = Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)
    return Starlette(routes=routes, middleware=[guard])


def _guard(token: str | None) -> Callable[..., Callable[[Request], Awaitable[Response]]]:
    """Return what makes an address of an answer: for those with the token alone, one request at a time."""
    digest = hashlib.sha256(token.encode()).digest() if token else None
    refused = {**HEADERS, **ASKING}
    turn = asyncio.Lock()

    def guarded(
        answer: Answer, scripts: Sequence[str] = SCRIPTS
    ) -> Callable[[Request], Awaitable[Response]]:
        policy = {**HEADERS, "Content-Security-Policy": POLICY.format(script_hash(HERE, *scripts))}

        async def serve(request: Request) -> Response:
            if digest and not secrets.compare_digest(_digest(request), digest):
                return Response("no valid token", 401, refused)
            async with turn:  # runs are read by one request at a time
                response = await asyncio.to_thread(answer, request)
            for key, value in policy.items():
                response.headers.setdefault(key, value)
            return response

        return serve

    return guarded


def _reply(parts: dict[str, tuple[str, str]]) -> Response:
    # Lone surrogates, which JSON can carry and UTF-8 cannot, are escaped.
    return Response(json.dumps(parts), media_type="application/json")


def _seen(request: Request) -> dict[str, Any]:
    """Return the keys of the parts that a page has, as it states them; nonsense is none."""
    try:
        value = json.loads(request.query_params.get("seen", "null"))
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {}


def _digest(request: Request) -> bytes:
    """Return the digest of the token that a request carries: as a bearer's, or as a password."""
    kind, _, secret = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "basic":
        try:
            secret = base64.b64decode(secret, validate=True).decode().partition(":")[2]
        except ValueError:  # no base64, or no text
            secret = ""
    return hashlib.sha256(secret.encode()).digest()
