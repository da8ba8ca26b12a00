"""A model that is asked: attempts, deadline, concurrency, budget, memory and counts around its replies."""

from __future__ import annotations

import hashlib
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from vlmrl.named_models.replies import Replies
from vlmrl.system.chat_endpoint import Invalid, Reply, Unavailable

__all__ = ["AskLimits", "AskedModel", "Messages", "Send"]

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 20.0

T = TypeVar("T")
Messages = Sequence[Mapping[str, Any]]
"""Messages of OpenAI's chat completions; a content is a text or a list of parts."""
Send = Callable[[Mapping[str, Any], float], Reply]
"""Sends one request, given its body and the seconds that it may take. Raises Unavailable or Invalid."""
Ready = Callable[[], None]
"""Returns when requests can be sent, e.g. once a model is loaded. Raises Unavailable."""


@dataclass(frozen=True)
class AskLimits:
    """The limits of a model: questions at a time, seconds and requests of one question, and of all."""

    concurrency: int = 16
    timeout_s: float = 60.0
    attempts: int = 3
    max_requests: int | None = None
    """Requests until the next `take_counts`; None: no limit."""


class AskedModel:
    """A frozen model behind `send`. Several threads may ask it.

    `identity` is what tells it from other models in the memory of replies: its address and its name.
    The time that `ready` takes is not a question's.
    """

    def __init__(
        self,
        identity: Sequence[str],
        send: Send,
        limits: AskLimits,
        replies: Replies,
        ready: Ready = lambda: None,
    ) -> None:
        self._identity, self._send, self._limits = [*identity], send, limits
        self._ready = ready
        self._turns = threading.BoundedSemaphore(limits.concurrency)
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._under_way: dict[str, Future[str]] = {}
        self.replies = replies

    def ask(self, body: Mapping[str, Any], read: Callable[[str], T]) -> T:
        """Return what `read` makes of the model's reply to a request's `body`, from memory if it is there.

        The body has the messages and all else that decides the reply. `read` raises Invalid for a reply
        that is not what was asked for: it is asked again, and only what can be read is remembered. A
        question that another thread is asking is not asked a second time.

        Raises:
            Unavailable: no reply in time, or the budget is spent.
            Invalid: no reply that could be read.
        """
        asked = json.dumps([self._identity, body], sort_keys=True)
        key = hashlib.sha256(asked.encode("utf-8", "surrogatepass")).hexdigest()
        with self._lock:
            self._counts["asked"] += 1
            known = self.replies.recall(key)
            other = self._under_way.get(key) if known is None else None
            own: Future[str] = Future()
            if known is None and other is None:
                self._under_way[key] = own
        try:
            if known is not None or other is not None:
                found = read(other.result() if other is not None else str(known))
                self._count("known", 1)
                return found
            return self._ask(key, own, body, read)
        except (Unavailable, Invalid):
            self._count("failed", 1)
            raise

    def take_counts(self) -> Counter[str]:
        """Return what was counted since the last time, and begin anew: counts and the budget.

        `asked` questions, of which `known` needed no request and `failed` got no reply that could be
        read; `requests`, of which `answered` took `microseconds` in total and cost `prompt_tokens` and
        `completion_tokens`.
        """
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return counts

    def _ask(
        self, key: str, own: Future[str], body: Mapping[str, Any], read: Callable[[str], T]
    ) -> T:
        try:
            with self._turns:
                text, found = self._attempt(body, read)
            self.replies.remember(key, text)
            own.set_result(text)
            return found
        except BaseException as error:
            own.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._under_way[key]

    def _attempt(self, body: Mapping[str, Any], read: Callable[[str], T]) -> tuple[str, T]:
        end, pause = time.monotonic() + self._limits.timeout_s, FIRST_PAUSE
        for attempt in range(1, self._limits.attempts + 1):
            try:
                since = time.monotonic()
                self._ready()
                end += time.monotonic() - since
                reply = self._request(body, end - time.monotonic())
                return reply.text, read(reply.text)
            except (Unavailable, Invalid) as error:
                again = not isinstance(error, Unavailable) or error.again
                told = error.retry_after if isinstance(error, Unavailable) else None
                wait = (told if told is not None else pause) * random.uniform(1.0, 1.25)
                late = time.monotonic() + wait >= end
                if not again or attempt == self._limits.attempts or late:
                    raise
                time.sleep(wait)
                pause = min(2 * pause, LONGEST_PAUSE)
        raise AssertionError("attempts is at least 1")

    def _request(self, body: Mapping[str, Any], seconds: float) -> Reply:
        with self._lock:
            budget = self._limits.max_requests
            if budget is not None and self._counts["requests"] >= budget:
                raise Unavailable(f"the budget of {budget} requests is spent", again=False)
            self._counts["requests"] += 1
        start = time.monotonic()
        reply = self._send(body, seconds)
        with self._lock:
            self._counts["answered"] += 1
            self._counts["prompt_tokens"] += reply.prompt_tokens
            self._counts["completion_tokens"] += reply.completion_tokens
            # Counters hold whole numbers: microseconds.
            self._counts["microseconds"] += round(1e6 * (time.monotonic() - start))
        return reply

    def _count(self, what: str, number: int) -> None:
        with self._lock:
            self._counts[what] += number
