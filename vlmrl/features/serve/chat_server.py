"""`vlmrl serve`: a model behind OpenAI's chat API, by vLLM's own server where there is one, else by ours.

Media are inside a request, as `data:` URIs or base64 text: a server that opened paths or URLs for whoever
asks would read this machine's files and network for them. What cannot be honoured is refused. A teacher is
asked for log-probs by two routes of vLLM, of which only what it needs is answered: `/tokenize`, and
`/inference/v1/generate` with `prompt_logprobs` 0 and no text written.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from vlmrl.assemble.trained_run import run_of
from vlmrl.engines.base import Sampling
from vlmrl.engines.serve import TokenGuard
from vlmrl.errors import UserError
from vlmrl.features.serve.asked_model import Batches, Dtype, ServedModel
from vlmrl.features.serve.reward_models import open_model
from vlmrl.media.access import reference
from vlmrl.pages.local_server import Desk, OtherModel, listen, token_for, trusted_hosts
from vlmrl.schema import Completion, Media, MediaKind, Prompt, Sample, Truth, Turn
from vlmrl.system.processes import end_if_asked

MAX_COMPLETIONS = 64
"""Most completions of one request."""
MAX_TOKENS = 512
"""Length of a completion where a request does not say."""
MAX_TEXT = 2**20
"""Characters of all texts of a request; to make tokens of more would keep others waiting."""
REFUSED = ("tools", "functions", "stop", "logprobs", "logit_bias", "response_format", "audio")
"""Keys that would change the reply, and that this server does not know how to honour."""
MEDIA: dict[str, MediaKind] = {
    "image_url": "image",
    "video_url": "video",
    "audio_url": "audio",
    "input_audio": "audio",
}
"""Types of content parts by the kind of medium that they hold."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a request asks: the conversation, how to sample, and whether the reply is streamed."""

    sample: Sample
    sampling: Sampling
    stream: bool


def read_request(body: object, rates: bool = False) -> Question:
    """Read the JSON body of `POST /v1/chat/completions`.

    `temperature` 0 is greedy; it is 1 where nothing is said, as OpenAI's. Without `seed` each request
    draws anew. The last turn is the user's; the assistant's for a model that `rates` it, and then the
    sample asks with that turn.

    Raises:
        UserError: a key that cannot be honoured, or a value of the wrong kind; the message names it.
    """
    if not isinstance(body, Mapping):
        raise UserError(f"expected a JSON object, got {type(body).__name__}")
    for key in REFUSED:
        if body.get(key) not in (None, False, [], {}, {"type": "text"}):
            raise UserError(f"{key}: not supported by this server")
    for key in ("presence_penalty", "frequency_penalty"):
        if body.get(key) not in (None, 0):
            raise UserError(f"{key}: expected 0, got {body[key]!r:.40}")
    tokens = body.get("max_completion_tokens", body.get("max_tokens"))
    temperature = _number(body, "temperature", 1.0, 0.0, 100.0)
    sampling = Sampling(
        n=_whole(body.get("n"), "n", 1, MAX_COMPLETIONS),
        max_tokens=_whole(tokens, "max_tokens", MAX_TOKENS, 2**20),
        temperature=temperature or 1.0,
        top_p=_number(body, "top_p", 1.0, 1e-6, 1.0),
        greedy=temperature == 0,
        seed=_whole(body.get("seed"), "seed", secrets.randbits(62), 2**63 - 1, least=0),
    )
    return Question(_sample(body.get("messages"), rates), sampling, body.get("stream") is True)


def _sample(messages: object, rates: bool) -> Sample:
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise UserError("messages: expected a list of at least one message")
    system, turns = "", []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise UserError(f"{where}: expected an object, got {message!r:.40}")
        role, parts = message.get("role"), _parts(message.get("content"), where)
        if role in ("system", "developer") and index == 0:
            if any(isinstance(part, Media) for part in parts):
                raise UserError(f"{where}: expected text in a system message")
            system = "".join(part for part in parts if isinstance(part, str))
        elif role in ("user", "assistant"):
            turns.append(Turn(role, parts))
        else:
            raise UserError(
                f"{where}.role: expected user or assistant (system only in front), got {role!r:.40}"
            )
    last_role = "assistant" if rates else "user"
    if not turns or turns[-1].role != last_role:
        speaker = turns[-1].role if turns else "none"
        raise UserError(f"messages: expected the last one to be of the {last_role}, got {speaker}")
    texts = (system, *(part for turn in turns for part in turn.parts if isinstance(part, str)))
    _require_short(sum(map(len, texts)), "messages")
    *history, last = turns
    return Sample(
        "request", "request", last.parts, Truth(), "none", system=system, history=tuple(history)
    )


def _require_short(length: int, key: str) -> None:
    if length > MAX_TEXT:
        raise UserError(f"{key}: expected at most {MAX_TEXT} characters of text, got {length}")


def _parts(content: object, where: str) -> tuple[str | Media, ...]:
    if isinstance(content, str):
        return (content,)
    if not isinstance(content, Sequence) or not content:
        raise UserError(f"{where}.content: expected text or a list of parts, got {content!r:.40}")
    return tuple(read_part(part, f"{where}.content[{i}]") for i, part in enumerate(content))


def read_part(part: Any, where: str) -> str | Media:
    """Read a part of a message's content: a text, or a medium that is inside the request.

    Raises:
        UserError: it is neither; `where` names it.
    """
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind not in MEDIA:
        known = ", ".join(("text", *MEDIA))
        raise UserError(f"{where}: expected a part of type {known}, got {part!r:.60}")
    held = part.get(kind)
    value = (
        held.get("data" if kind == "input_audio" else "url") if isinstance(held, Mapping) else held
    )
    try:
        if kind == "input_audio" and isinstance(value, str):
            value = f"data:audio;base64,{value}"
        medium = reference(value, kind=MEDIA[kind])
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    if medium.data is None:
        raise UserError(f"{where}: expected a data: URI; this server opens no URLs and no files")
    return medium


def _whole(value: object, key: str, default: int, most: int, least: int = 1) -> int:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UserError(f"{key}: expected a whole number from {least} to {most}, got {value!r:.40}")
    return value


def _number(
    body: Mapping[str, object], key: str, default: float, least: float, most: float
) -> float:
    value = body.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise UserError(f"{key}: expected a number from {least:g} to {most:g}, got {value!r:.40}")
    return float(value)


Handle = Callable[[Any], Future[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Grading:
    """A prompt and what follows it, as one: its compact ids, and a sample that holds its media."""

    ids: tuple[int, ...]
    sample: Sample


def _grading_routes(batches: Batches, desk: Desk) -> list[Route]:
    def handled(handle: Handle) -> Callable[[Request], Any]:
        async def respond(request: Request) -> Response:
            return await desk.answer(request, lambda body: (handle(body), JSONResponse))

        return respond

    def tokenize(body: Any) -> Future[dict[str, Any]]:
        text = body.get("prompt") if isinstance(body, Mapping) else None
        if not isinstance(text, str):
            raise UserError(f"prompt: expected a text, got {text!r:.40}")
        _require_short(len(text), "prompt")
        special = body.get("add_special_tokens", True) is True
        return batches.call(lambda model: {"tokens": model.tokenize(text, special)})

    def grade(body: object) -> Future[dict[str, Any]]:
        asked = read_grading(body)
        return batches.call(lambda model: _grade(model, asked))

    return [
        Route("/tokenize", handled(tokenize), methods=["POST"]),
        Route("/inference/v1/generate", handled(grade), methods=["POST"]),
    ]


def read_grading(body: object) -> Grading:
    """Read the JSON body of `POST /inference/v1/generate`.

    Raises:
        UserError: it asks for more than log-probs of the tokens that it gives, or a value is of the wrong
            kind; the message names it.
    """
    if not isinstance(body, Mapping):
        raise UserError(f"expected a JSON object, got {type(body).__name__}")
    ids, fields = body.get("token_ids"), body.get("sampling_params")
    if not isinstance(fields, Mapping) or fields.get("prompt_logprobs") != 0:
        raise UserError("sampling_params.prompt_logprobs: expected 0: this server only grades here")
    if (
        not isinstance(ids, Sequence)
        or len(ids) < 2
        or not all(type(i) is int and 0 <= i < 2**31 for i in ids)
    ):
        raise UserError("token_ids: expected a list of at least 2 ids of tokens")
    parts = [
        read_part(_as_chat(part), f"content_parts[{index}]")
        for index, part in enumerate(body.get("content_parts") or ())
    ]
    if any(not isinstance(part, Media) for part in parts):
        raise UserError("content_parts: expected media alone")
    return Grading(tuple(ids), Sample("request", "request", (*parts, ""), Truth(), "none"))


def _as_chat(part: object) -> Any:
    """Return the part `{"type": t, "url": ...}` as chat messages have it, `{"type": t, t: {"url": ...}}`."""
    if isinstance(part, Mapping) and isinstance(part.get("type"), str) and "url" in part:
        return {"type": part["type"], part["type"]: {"url": part["url"]}}
    return part


def _grade(model: ServedModel, asked: Grading) -> dict[str, Any]:
    ids, logprobs = model.grade(asked.ids, asked.sample)
    tables = [None] * (len(ids) - len(logprobs))
    graded = [{str(i): {"logprob": x}} for i, x in zip(ids[len(tables) :], logprobs, strict=True)]
    return {"prompt_token_ids": list(ids), "prompt_logprobs": [*tables, *graded], "choices": []}


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
    arguments = ["--model", run_of(model)[1], "--served-model-name", name or _name_of(model)]
    arguments += ["--host", host, "--port", str(port)]
    arguments += ["--generation-config", "vllm", "--disable-uvicorn-access-log"]
    # What a teacher is asked by.
    arguments += ["--enable-scale-out", "--logprobs-mode", "raw_logprobs"]
    if token:  # vLLM's own guard leaves addresses beside /v1 open
        arguments += ["--middleware", "vlmrl.engines.serve.TokenGuard"]
    arguments += ["--dtype", dtype] if dtype else []
    if torch.version.cuda is None:
        arguments += ["--no-enable-chunked-prefill"]  # a seeded request dies of it on a CPU
    program = [sys.executable, "-m", "vlmrl.features.serve.vllm_program"]
    os.execve(sys.executable, [*program, *arguments], environment)


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
    app = build_app(batches, name, token, trusted_hosts(host))
    listen(app, host, port, f"serving {name} at", "/v1")


def build_app(batches: Batches, name: str, token: str | None, hosts: tuple[str, ...]) -> Starlette:
    """Return the server: `/health`, `/v1/models`, `/v1/chat/completions`, and the routes of a teacher.

    It answers only requests that name one of `hosts`, so that no web page reaches it under a name of its
    own, and that are JSON, which a page of another origin may not send.
    """
    desk = Desk()

    async def health(request: Request) -> Response:
        return Response()

    async def models(request: Request) -> Response:
        card = {"id": name, "object": "model", "created": 0, "owned_by": "vlmrl"}
        return JSONResponse({"object": "list", "data": [card]})

    async def chat(request: Request) -> Response:
        def read(body: Any) -> tuple[Future[Any], Callable[[Any], Response]]:
            question = read_request(body, batches.rates)
            if (asked := body.get("model")) not in (None, name):
                raise OtherModel(f"no model {asked!r:.80} here; this is {name!r}")
            pending = batches.ask(question.sample, question.sampling)
            return pending, lambda answered: _reply(name, answered, question.stream)

        return await desk.answer(request, read)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        batches.close()

    routes = [
        Route("/health", health),
        Route("/v1/models", models),
        Route("/v1/chat/completions", chat, methods=["POST"]),
        *_grading_routes(batches, desk),
    ]
    guards = [Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)]
    if token:
        guards.append(Middleware(TokenGuard, token=token))
    return Starlette(routes=routes, middleware=guards, lifespan=lifespan)


def _reply(name: str, answered: tuple[Prompt, tuple[Completion, ...]], stream: bool) -> Response:
    """Return a chat completion; streamed it comes in one piece."""
    prompt, completions = answered
    head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": name}
    choices = [
        {
            "index": g,
            "delta" if stream else "message": {"role": "assistant", "content": completion.text},
            "finish_reason": completion.finish_reason,
        }
        for g, completion in enumerate(completions)
    ]
    read = len(prompt.encoded.ids)
    written = sum(len(completion.token_ids) for completion in completions)
    usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    kind = "chat.completion.chunk" if stream else "chat.completion"
    whole = {**head, "object": kind, "choices": choices, "usage": usage}
    if not stream:
        return JSONResponse(whole)
    events = f"data: {json.dumps(whole)}\n\ndata: [DONE]\n\n"
    return Response(events, media_type="text/event-stream")


def _name_of(model: str) -> str:
    """Return what requests call a model that was given no name: its folder's, or the hub's."""
    return Path(model).absolute().name if Path(model).is_dir() else model
