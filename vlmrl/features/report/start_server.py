"""`vlmrl watch --start`: the addresses by which a page writes configs, and begins, stops and resumes runs.

Whoever begins a run runs code with the rights of its user. So each of these asks for a token in a header
of its own, which no page of another origin can send and no browser adds by itself; what changes anything
is a POST of JSON from the same origin as well.
"""

from __future__ import annotations

import hashlib
import secrets
import shlex
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from vlmrl.config import tree
from vlmrl.config.key_help import all_keys
from vlmrl.errors import UserError
from vlmrl.features.report import config_files
from vlmrl.features.report.live_pages import say_state
from vlmrl.features.report.live_run import LiveRun
from vlmrl.features.report.page import HERE
from vlmrl.features.report.started_runs import StartedRuns, command_text, vlmrl_command
from vlmrl.pages.local_server import Desk
from vlmrl.pages.render import render, templates

SCRIPTS = ("start.js",)
FORECAST_S = 600.0
"""Seconds after which a forecast is given up."""
Serve = Callable[[Request], Awaitable[Response]]
Action = Callable[[Mapping[str, Any]], dict[str, Any]]


def start_routes(
    started: StartedRuns,
    token: str,
    live: Callable[[], dict[str, LiveRun]],
    guarded: Callable[..., Serve],
) -> list[Route]:
    """Return the addresses of the page: itself at `/start`, what it shows, and what it asks for.

    `live` reads the runs of the folder; `guarded` makes an address of an answer, one request at a time.
    """
    digest = hashlib.sha256(token.encode()).digest()

    def page(_: Request) -> Response:
        # Without the token it says nothing of this machine: its script asks for all.
        return HTMLResponse(render(HERE, "start.html", *SCRIPTS, keys=all_keys()))

    def state(request: Request) -> Response:
        if no := _refused(request, digest):
            return no
        shown = {
            "files": config_files.config_names(),
            "shipped": list(tree.shipped()),
            "runs": str(_parts().runs(list(_rows(started, live())))),
        }
        key = hashlib.sha256(repr(shown).encode("utf-8", "replace")).hexdigest()
        return JSONResponse(
            {} if request.query_params.get("seen") == key else {"key": key, **shown}
        )

    desk = Desk()
    # One at a time each; a forecast takes long.
    workers = {"forecast": ThreadPoolExecutor(1, "forecast"), "": ThreadPoolExecutor(1, "start")}

    def address(name: str, action: Action) -> Route:
        worker = workers.get(name, workers[""])

        async def respond(request: Request) -> Response:
            if no := _refused(request, digest) or _from_elsewhere(request):
                return no
            return await desk.answer(
                request, lambda body: (worker.submit(action, _mapping(body)), JSONResponse)
            )

        return Route(f"/start/{name}", respond, methods=["POST"])

    actions = {
        "open": _open,
        "check": _check,
        "save": _save,
        "forecast": _forecast,
        **_runs(started),
    }
    return [
        Route("/start", guarded(page, SCRIPTS)),
        Route("/start/state", guarded(state)),
        *(address(name, action) for name, action in actions.items()),
    ]


def _refused(request: Request, digest: bytes) -> Response | None:
    """Return why a request is refused if it does not carry the token; a browser's own password is none."""
    kind, _, secret = request.headers.get("authorization", "").partition(" ")
    sent = hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
    if kind.lower() == "bearer" and secrets.compare_digest(sent, digest):
        return None
    return JSONResponse({"error": {"message": "no valid token"}}, 401)


def _from_elsewhere(request: Request) -> Response | None:
    if request.headers.get("origin") == f"{request.url.scheme}://{request.headers.get('host')}":
        return None
    return JSONResponse({"error": {"message": "expected a request of this page"}}, 403)


# --------------------------------------------------------------------------------------------------
# What the page asks for.


def _open(body: Mapping[str, Any]) -> dict[str, Any]:
    if base := _text(body, "shipped"):
        name, text, base_text = config_files.begin_config(base)
        return {"name": name, "text": text, "base": base_text}
    text, digest = config_files.read_config(name := _text(body, "name"))
    return {"name": name, "text": text, "digest": digest}


def _check(body: Mapping[str, Any]) -> dict[str, Any]:
    try:
        text, overrides = _text(body, "text"), _overrides(body)
        checked = config_files.check_text(_text(body, "name"), text, overrides)
    except UserError as error:  # a name or an override that is none is a mistake like the others
        checked = config_files.CheckedText(mistakes=[str(error)])
        return {"count": 1, "keys": str(_parts().keys(checked))}
    commands = {"train": ["train", _text(body, "name"), *overrides]}
    commands |= {"validate": _validate(body), "plan": _plan(body)}
    return {
        "count": checked.count,
        "keys": str(_parts().keys(checked)),
        "commands": {name: command_text(*arguments) for name, arguments in commands.items()},
    }


def _save(body: Mapping[str, Any]) -> dict[str, Any]:
    known, replace = body.get("digest"), body.get("replace") is True
    return {
        "digest": config_files.write_config(
            _text(body, "name"), _text(body, "text"), known, replace
        )
    }


def _forecast(body: Mapping[str, Any]) -> dict[str, Any]:
    """Run what validates a config whole, and, if it is valid, what forecasts it; return both outputs."""
    outputs = []
    for arguments in (_validate(body), _plan(body)):
        try:
            done = subprocess.run(
                vlmrl_command(*arguments),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=FORECAST_S,
            )
        except subprocess.TimeoutExpired as error:
            raise UserError(f"the forecast took more than {FORECAST_S:.0f} s") from error
        outputs.append((command_text(*arguments), done.stdout + done.stderr, done.returncode))
        if done.returncode:
            break
    return {"outputs": str(_parts().outputs(outputs)), "fits": not done.returncode}


def _validate(body: Mapping[str, Any]) -> list[str]:
    return ["config", "validate", _text(body, "name"), *_overrides(body)]


def _plan(body: Mapping[str, Any]) -> list[str]:
    """Return the arguments of the forecast that a page asks for."""
    wanted = [
        f"--{key}={value}" for key in ("gpus", "gpu", "memory") if (value := _text(body, key))
    ]
    return ["plan", _text(body, "name"), *_overrides(body), *wanted]


def _runs(started: StartedRuns) -> dict[str, Action]:
    def run(body: Mapping[str, Any]) -> dict[str, Any]:
        return {"run": started.start(_text(body, "name"), _overrides(body))}

    def stop(body: Mapping[str, Any]) -> dict[str, Any]:
        return {"run": started.stop(_run_name(body))}

    def resume(body: Mapping[str, Any]) -> dict[str, Any]:
        return {"run": started.resume(_run_name(body))}

    return {"run": run, "stop": stop, "resume": resume}


def _rows(started: StartedRuns, live: Mapping[str, LiveRun]) -> list[dict[str, Any]]:
    """Return what the page shows of each run, those first that have no folder yet."""
    names = dict.fromkeys([*(name for name in started.names() if name not in live), *live])
    return [_row(name, started, live.get(name)) for name in names]


def _row(name: str, started: StartedRuns, run: LiveRun | None) -> dict[str, Any]:
    process, last = started.process_of(name), started.get(name)
    state = say_state(run.state()) if run and run.config else []
    has_ended = bool(state) and state[0][0] == "finished"  # between the two looks it may have
    return {
        "name": name,
        "has_page": bool(state),
        "state": state or [("starting" if process else "did not begin", "")],
        "command": last.command if last else "",
        "exit_code": started.exit_code(name),
        "process": None if has_ended else process,
        "stopping": not has_ended and started.is_stopping(name),
        "resume": command_text("train", *last.resuming)
        if last and not process and not has_ended
        else "",
        "log": started.log(name),
        "mistake": run.mistake if run else "",
    }


# --------------------------------------------------------------------------------------------------


def _parts() -> Any:
    """Return the macros of the parts that are asked for."""
    return templates(HERE).get_template("start_parts.html").module


def _mapping(body: Any) -> Mapping[str, Any]:
    if not isinstance(body, Mapping):
        raise UserError(f"expected an object, got {type(body).__name__}")
    return body


def _text(body: Mapping[str, Any], key: str) -> str:
    value = body.get(key, "")
    if not isinstance(value, str):
        raise UserError(f"{key}: expected a text, got {value!r:.40}")
    return value


def _run_name(body: Mapping[str, Any]) -> str:
    name = _text(body, "name")
    if not name or "/" in name or name.startswith("."):
        raise UserError(f"{name!r}: expected the name of a run")
    return name


def _overrides(body: Mapping[str, Any]) -> list[str]:
    try:
        overrides = shlex.split(_text(body, "overrides"))
    except ValueError as error:
        raise UserError(f"overrides: {error}") from error
    if options := [text for text in overrides if text.startswith("-")]:
        raise UserError(f"override {options[0]!r}: write key=value, e.g. run.steps=50")
    return overrides
