"""Log-probs of a text that is given, by the routes that a served teacher is asked through.

The requests and replies are those of vLLM's `/tokenize` and `/inference/v1/generate`, of which only what a
teacher needs is answered: `prompt_logprobs` 0 and no text written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from vlmrl.commands.serving.asked_model import ServedModel
from vlmrl.commands.serving.batches import Batches
from vlmrl.commands.serving.chat_requests import read_part
from vlmrl.commands.serving.json_requests import answer
from vlmrl.errors import UserError
from vlmrl.schema import Media, Sample, Truth

__all__ = ["routes"]

Handle = Callable[[Any], Future[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Grading:
    """A prompt and what follows it, as one: its compact ids, and a sample that holds its media."""

    ids: tuple[int, ...]
    sample: Sample


def routes(batches: Batches) -> list[Route]:
    """Return the routes that a teacher is asked through."""

    def handled(handle: Handle) -> Callable[[Request], Any]:
        async def respond(request: Request) -> Response:
            return await answer(request, lambda body: (handle(body), JSONResponse))

        return respond

    def tokenize(body: Any) -> Future[dict[str, Any]]:
        text = body.get("prompt") if isinstance(body, Mapping) else None
        if not isinstance(text, str):
            raise UserError(f"prompt: expected a text, got {text!r:.40}")
        special = body.get("add_special_tokens", True) is True
        return batches.call(lambda model: {"tokens": model.tokenize(text, special)})

    def grade(body: Any) -> Future[dict[str, Any]]:
        asked = read_grading(body)
        return batches.call(lambda model: _grade(model, asked))

    return [
        Route("/tokenize", handled(tokenize), methods=["POST"]),
        Route("/inference/v1/generate", handled(grade), methods=["POST"]),
    ]


def read_grading(body: Any) -> Grading:
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
    if not isinstance(ids, Sequence) or not _is_ids(ids):
        raise UserError("token_ids: expected a list of at least 2 ids of tokens")
    parts = [
        read_part(_as_chat(part), f"content_parts[{place}]")
        for place, part in enumerate(body.get("content_parts") or ())
    ]
    if any(not isinstance(part, Media) for part in parts):
        raise UserError("content_parts: expected media alone")
    return Grading(tuple(ids), Sample("request", "request", (*parts, ""), Truth(), "none"))


def _is_ids(ids: Sequence[Any]) -> bool:
    return len(ids) >= 2 and all(type(i) is int and 0 <= i < 2**31 for i in ids)


def _as_chat(part: Any) -> Any:
    """Return the part `{"type": t, "url": ...}` as chat messages have it, `{"type": t, t: {"url": ...}}`."""
    if isinstance(part, Mapping) and isinstance(part.get("type"), str) and "url" in part:
        return {"type": part["type"], part["type"]: {"url": part["url"]}}
    return part


def _grade(model: ServedModel, asked: Grading) -> dict[str, Any]:
    ids, found = model.grade(asked.ids, asked.sample)
    tables = [None] * (len(ids) - len(found))
    told = [{str(i): {"logprob": x}} for i, x in zip(ids[len(tables) :], found, strict=True)]
    return {"prompt_token_ids": list(ids), "prompt_logprobs": [*tables, *told], "choices": []}
