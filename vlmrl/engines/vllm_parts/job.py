"""One batch of prompts shared among several servers: waiting, answered and lost prompts."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vlmrl.engines.base import Sampling
from vlmrl.engines.completions import Sampled
from vlmrl.engines.routed_experts import read_routes
from vlmrl.engines.vllm_parts.requests import EngineFault, MediaFolder, ServerAnswer, lend, request
from vlmrl.engines.vllm_parts.server import NoAnswer, RequestRefused, Server
from vlmrl.errors import LostEngine, UserError
from vlmrl.schema import Completion, Experts, Prompt
from vlmrl.schema.media import num_bytes

IN_FLIGHT = 2**29
"""Largest number of bytes of decoded media in flight to one server, unless one prompt exceeds it."""


@dataclass(eq=False)
class Job:
    """The prompts of one call of generate, by number; used by many threads."""

    prompts: Sequence[Prompt]
    sampling: Sampling
    version: int
    """Version of the weights when the job began."""
    number: int = 0
    """How many jobs began before it."""
    routers: Mapping[int, Any] = field(default_factory=dict)
    """The policy's routers, by layer, whose choices the answers must hold."""
    deadline: float = 0.0
    groups: dict[int, tuple[Completion, ...]] = field(default_factory=dict)
    error: UserError | LostEngine | None = None
    """Why the job failed; None while it goes on."""

    def __post_init__(self) -> None:
        self._waiting = deque(range(len(self.prompts)))
        self._lost: Counter[int] = Counter()
        self._lock = threading.Lock()

    @property
    def open(self) -> bool:
        """Whether prompts are still unanswered."""
        return self.error is None and len(self.groups) < len(self.prompts)

    def width(self, max_num_seqs: int) -> int:
        """Return the number of prompts to keep in flight to one server.

        Enough to keep its batch of `max_num_seqs` full while it prepares the next media, but no more
        media than IN_FLIGHT: both sides hold several copies of what is in flight.
        """
        heaviest = max((sum(map(num_bytes, p.media)) for p in self.prompts), default=0)
        enough = min(len(self.prompts), 2 * max_num_seqs // self.sampling.n, 64)
        return max(1, min(enough, IN_FLIGHT // max(1, heaviest)))

    def take(self) -> int | None:
        """Return the number of the next prompt to request, None if none waits."""
        with self._lock:
            return self._waiting.popleft() if self._waiting and self.error is None else None

    def lost(self, number: int, fault: EngineFault, limit: int) -> None:
        """Put a prompt back to be requested again; more than `limit` times fails the job."""
        with self._lock:
            self._lost[number] += 1
            self._waiting.appendleft(number)
        if self._lost[number] > limit:
            name = self.prompts[number].sample.id
            self.fail(UserError(f"sample {name!r} was lost {self._lost[number]} times: {fault}"))

    def fail(self, error: UserError | LostEngine) -> None:
        """Fail the job; the first error counts."""
        with self._lock:
            self.error = self.error or error


def ask(
    server: Server,
    prompt: Prompt,
    fields: Mapping[str, object],
    job: Job,
    folder: MediaFolder | None = None,
    adapter: bool = False,
) -> ServerAnswer:
    """Return the server's completions of a job's prompt; `fields` are those of vLLM's SamplingParams.

    Its media go through `folder` if the server reads that, else within the request. With `adapter` the
    completions are by the model with the adapter that it was started with.

    Raises:
        UserError: the server refuses the prompt, or does not tell which experts it chose.
        EngineFault: no answer in time, or one that cannot be read; the message names the stage.
    """
    seconds = max(0.1, job.deadline - time.monotonic())
    try:
        with lend(prompt.media, folder) as media:
            body = request(prompt, fields, media, adapter)
            reply = server.post("/inference/v1/generate", body, seconds, "generation")
    except RequestRefused as error:
        raise UserError(f"sample {prompt.sample.id!r}: {error}") from error
    except NoAnswer as fault:
        raise EngineFault(
            f"{_stage(server)}: {fault} (engine option generate_timeout_s)"
        ) from fault
    try:
        ids, choices = tuple(reply["prompt_token_ids"]), reply["choices"]
        experts = read_routes(job.routers, len(ids), choices)
        return ServerAnswer(ids, tuple(map(_written, choices, experts)))
    except (KeyError, TypeError, ValueError) as error:
        raise EngineFault(f"generation: {server} gave an answer of another form") from error


def _written(choice: Mapping[str, Any], experts: Experts | None) -> Sampled:
    return Sampled(
        tuple(choice["token_ids"]),
        tuple(token["logprob"] for token in choice["logprobs"]["content"]),
        choice["finish_reason"],
        tuple((int(v["version"]), v["end"] - v["start"]) for v in choice["weight_versions"]),
        experts,
    )


def _stage(server: Server) -> str:
    """Return the stage of a server that does not answer: no request runs while it prepares media."""
    try:
        text = str(server.call("GET", "/metrics", None, 5.0, "generation"))
    except (EngineFault, UserError):
        return "generation"
    running = re.findall(r"^vllm:num_requests_running\{.*\} ([\d.]+)", text, re.MULTILINE)
    return "generation" if any(float(count) for count in running) else "media"
