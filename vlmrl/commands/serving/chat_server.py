"""`vlmrl serve`: a model behind OpenAI's chat API, by vLLM's own server where there is one, else by ours."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from vlmrl.commands.served_models.opened_model import open_model
from vlmrl.commands.serving import grading
from vlmrl.commands.serving.asked_model import Dtype
from vlmrl.commands.serving.batches import Batches
from vlmrl.commands.serving.chat_requests import read_request
from vlmrl.commands.serving.json_requests import OtherModel, answer
from vlmrl.commands.serving.local_server import LOOPBACK, listen, token_for
from vlmrl.commands.trained_run import run_of
from vlmrl.engines.serve import TokenGuard
from vlmrl.schema import Completion, Prompt
from vlmrl.system.launched.parent_watch import end_if_asked

__all__ = ["build_app", "serve_hf", "serve_vllm", "vllm_is_installed"]


def vllm_is_installed() -> bool:
    """Return whether vLLM can serve; nothing is imported."""
    return importlib.util.find_spec("vllm") is not None


def serve_vllm(model: str, host: str, port: int, name: str | None, dtype: Dtype | None) -> None:
    """Become vLLM's OpenAI server of a model; this does not return.

    Raises:
        UserError: no such model, or other machines could ask without a token.
    """
    environment = dict(os.environ, VLLM_WORKER_MULTIPROC_METHOD="spawn")
    if token := token_for(host):
        environment["VLLM_API_KEY"] = token
    given = ["--model", run_of(model)[1], "--served-model-name", name or _name_of(model)]
    given += ["--host", host, "--port", str(port)]
    given += ["--generation-config", "vllm", "--disable-uvicorn-access-log"]
    given += ["--enable-scale-out", "--logprobs-mode", "raw_logprobs"]  # what a teacher is asked by
    if token:  # vLLM's own guard leaves addresses beside /v1 open
        given += ["--middleware", "vlmrl.engines.serve.TokenGuard"]
    given += ["--dtype", dtype] if dtype else []
    if torch.version.cuda is None:
        given += ["--no-enable-chunked-prefill"]  # a seeded request dies of it on a CPU
    program = [sys.executable, "-m", "vlmrl.commands.serving.vllm_program"]
    os.execve(sys.executable, [*program, *given], environment)


def serve_hf(
    model: str, host: str, port: int, name: str | None, batch: int, dtype: Dtype = "float32"
) -> None:
    """Serve a model by transformers until SIGTERM or Ctrl-C, or until a run that started this is gone.

    Raises:
        UserError: no such model, or it would listen to other machines without a token.
    """
    end_if_asked()
    token, name = token_for(host), name or _name_of(model)
    batches = Batches(open_model(model, dtype), batch)
    app = build_app(batches, name, token, LOOPBACK if host in LOOPBACK else ("*",))
    listen(app, host, port, f"serving {name} at", "/v1")


def build_app(batches: Batches, name: str, token: str | None, hosts: tuple[str, ...]) -> Starlette:
    """Return the server: `/health`, `/v1/models`, `/v1/chat/completions`, and the routes of a teacher.

    It answers only requests that name one of `hosts`, so that no web page reaches it under a name of its
    own, and that are JSON, which a page of another origin may not send.
    """

    async def health(request: Request) -> Response:
        return Response()

    async def models(request: Request) -> Response:
        found = {"id": name, "object": "model", "created": 0, "owned_by": "vlmrl"}
        return JSONResponse({"object": "list", "data": [found]})

    async def chat(request: Request) -> Response:
        def read(body: Any) -> tuple[Future[Any], Callable[[Any], Response]]:
            question = read_request(body, batches.rates)
            if (asked := body.get("model")) not in (None, name):
                raise OtherModel(f"no model {asked!r:.80} here; this is {name!r}")
            found = batches.ask(question.sample, question.sampling)
            return found, lambda answered: _reply(name, answered, question.stream)

        return await answer(request, read)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        batches.close()

    routes = [
        Route("/health", health),
        Route("/v1/models", models),
        Route("/v1/chat/completions", chat, methods=["POST"]),
        *grading.routes(batches),
    ]
    guards = [Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)]
    if token:
        guards.append(Middleware(TokenGuard, token=token))
    return Starlette(routes=routes, middleware=guards, lifespan=lifespan)


def _reply(name: str, answered: tuple[Prompt, tuple[Completion, ...]], stream: bool) -> Response:
    """Return a chat completion; streamed it comes in one piece."""
    prompt, completions = answered
    head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": name}
    said = [
        {
            "index": g,
            "delta" if stream else "message": {"role": "assistant", "content": found.text},
            "finish_reason": found.finish_reason,
        }
        for g, found in enumerate(completions)
    ]
    read, written = len(prompt.encoded.ids), sum(len(found.token_ids) for found in completions)
    usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    kind = "chat.completion.chunk" if stream else "chat.completion"
    whole = {**head, "object": kind, "choices": said, "usage": usage}
    if not stream:
        return JSONResponse(whole)
    events = f"data: {json.dumps(whole)}\n\ndata: [DONE]\n\n"
    return Response(events, media_type="text/event-stream")


def _name_of(model: str) -> str:
    """Return what requests call a model that was given no name: its folder's, or the hub's."""
    return Path(model).absolute().name if Path(model).is_dir() else model
