"""Ask any server for the number that a completion is paid by."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from vlmrl.named_models.asked import AskedModel, AskLimits, Replies, media_parts
from vlmrl.schema import Completion, Sample, Seen, Verdict
from vlmrl.scoring.model_judge import describe, part_of, row_of
from vlmrl.scoring.named_judge import finite, read_json
from vlmrl.scoring.trl_verifier import solution
from vlmrl.scoring.verifier import Laws, Verifier
from vlmrl.system.chat_endpoint import Invalid, Reply, Unavailable, post


@dataclass(frozen=True)
class HttpScore(Verifier):
    """A score in [0, 1] from the number that a server replies to a completion.

    What is posted is one JSON object: `prompt` (the conversation's text), `completion`, `truth` (as `vlmrl
    score` reads it), `row` (the columns of `tells`) and, with `media: true`, `media` in the form of OpenAI's
    chat completions. A server with keys of its own gets `body` in its place, in which the texts
    "{prompt}", "{completion}", "{truth}" (the first accepted text, the letter or the number) and "{NAME}" of
    a told column are replaced. The number stands in the reply under `key`: names and places in a list,
    parted by dots. It is mapped from `range` to [0, 1] and clamped; a score below `least` is paid 0.

    No reply in time, an error status, no finite number under `key`: a fault, never a 0. No answer scores 0
    without asking. Requests under way at a time are `at_once`, for the server to batch; equal ones are sent
    once. `seconds` bounds all `attempts` of one, with pauses that double. The key is read from the
    environment variable `key_env`.

    Used by: MT-R1-Zero (a COMET server of yours), Visual-ARFT (cosine of sentence embeddings: `/score` of
    vLLM or `/similarity` of text-embeddings-inference), IXC-2.5-Reward (a server of its own code).

    Refuses: a text in place of the number, NaN, a bool; part of a reply that is no JSON.

    Source: ours; cosine below 0.5 paid 0: Visual-ARFT, arXiv 2505.14246.

    Raises: ValueError: no address, a range that does not rise, limits of no sense, a `body` with media.
    """

    waits: ClassVar[bool] = True
    laws: ClassVar[Laws] = Laws(of_models=True)

    url: str = ""
    """The whole address, such as `http://localhost:8000/score`."""
    key: str = "score"
    """Where the number stands in the reply: `score`, `data.0.score`, `0`."""
    range: tuple[float, float] = (0.0, 1.0)
    """The numbers whose scores are 0 and 1."""
    least: float = 0.0
    """A score below this is paid 0."""
    body: dict[str, object] = field(default_factory=dict)
    """What is posted to a server with keys of its own; empty: prompt, completion, truth, row and media."""
    part: str = "answer"
    """What is scored: `answer`, `text` (the whole completion) or a tag of the template."""
    media: bool = False
    """Whether the images, videos and audio of the prompt are posted, as the policy saw them."""
    truth: bool = True
    """Whether what is known to be true is posted."""
    tells: tuple[str, ...] = ()
    """Columns of the row that are posted: those that the card maps to nothing else."""
    key_env: str = ""
    """The environment variable that holds the server's key; empty: none is sent."""
    seconds: float = 60.0
    """Seconds for one completion, all of its attempts and pauses included."""
    attempts: int = 3
    """Requests for one completion."""
    at_once: int = 32
    """Requests under way at a time."""
    _asked: AskedModel = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url: expected http:// or https://, got {self.url!r}")
        if not self.range[0] < self.range[1]:
            raise ValueError(f"range: expected the worst number, then the best, got {self.range}")
        if self.attempts < 1 or not self.seconds > 0 or self.at_once < 1:
            raise ValueError("attempts, seconds and at_once are positive")
        if self.media and self.body:
            raise ValueError("media: a body of yours has no place for media")
        limits = AskLimits(self.at_once, self.seconds, self.attempts)
        asked = AskedModel([self.url], self._send, limits, Replies())
        object.__setattr__(self, "_asked", asked)

    @property
    def concurrency(self) -> int:
        """Requests at a time."""
        return self.at_once

    @property
    def looks(self) -> bool:
        """Whether the media are posted."""
        return self.media

    @property
    def reads_truth(self) -> bool:
        """Whether what is true is posted."""
        return self.truth

    def __call__(self, completion: Completion, sample: Sample, seen: Seen | None = None) -> Verdict:
        """Ask the server, unless there is nothing to score."""
        candidate = part_of(completion, self.part)
        if not candidate:
            return Verdict(0.0, note=f"no {self.part}")
        if self.media and sample.media and seen is None:
            return Verdict.failed("the media are not at hand: expected a run, or media: false")
        columns = row_of(sample, self.tells)
        body: dict[str, object]
        if self.body:
            texts = {"prompt": sample.conversation, "completion": candidate, **columns}
            values = {**texts, "truth": solution(sample.truth)}
            body = {key: _filled(value, values) for key, value in self.body.items()}
        else:
            body = {"prompt": sample.conversation, "completion": candidate, "row": columns}
            body |= {"truth": describe(sample)["truth"]} if self.truth else {}
            body |= {"media": media_parts(seen.media, seen.frames)} if self.media and seen else {}
        try:
            value = self._asked.ask(body, lambda reply: finite(_under(read_json(reply), self.key)))
        except Unavailable as error:
            return Verdict.failed(f"{self.url} unavailable: {error}")
        except Invalid as error:
            return Verdict.failed(f"{self.url} invalid: {error}")
        low, high = self.range
        score = min(1.0, max(0.0, (value - low) / (high - low)))
        paid = score if score >= self.least else 0.0
        return Verdict(paid, {"raw": value}, answer=completion.answer)

    def _send(self, body: Mapping[str, object], seconds: float) -> Reply:
        key = os.environ.get(self.key_env) if self.key_env else None
        return Reply(post(self.url, body, key, seconds).decode("utf-8", "replace"))


def _filled(template: object, values: Mapping[str, object]) -> object:
    """Return a JSON tree with each text `{name}` replaced by that value."""
    if isinstance(template, Mapping):
        return {key: _filled(value, values) for key, value in template.items()}
    if isinstance(template, list):
        return [_filled(value, values) for value in template]
    if not isinstance(template, str) or not (template.startswith("{") and template.endswith("}")):
        return template
    value = values.get(template[1:-1])
    if value is None:
        raise ValueError(f"body: nothing is known of {template!r}; there are: {', '.join(values)}")
    return value


def _under(tree: object, key: str) -> object:
    """Return what stands in a reply under a dotted key.

    Raises:
        Invalid: nothing does.
    """
    value = tree
    for name in key.split("."):
        if isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        elif isinstance(value, dict) and name in value:
            value = value[name]
        else:
            raise Invalid(f"nothing stands under {key!r} in {json.dumps(tree):.80}")
    return value
