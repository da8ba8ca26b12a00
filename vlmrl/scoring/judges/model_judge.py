"""What verifiers share that ask a model: which one it is, what it is shown, and its limits."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from vlmrl import plugins
from vlmrl.config import NamedModel
from vlmrl.named_models.asked import AskedModel, AskLimits
from vlmrl.named_models.content import media_parts
from vlmrl.named_models.opened import open_model
from vlmrl.named_models.replies import Replies
from vlmrl.schema import Completion, Sample, Seen
from vlmrl.scoring.judges import asking
from vlmrl.scoring.judges.marked_image import Drawn, MarkedImage, mark_image
from vlmrl.scoring.verifier import Verifier
from vlmrl.system.chat_endpoint import Reply, Unavailable, chat

__all__ = ["ModelJudge", "Parts"]

THREADS = 16
"""Questions at a time, where no named model says it."""

T = TypeVar("T")
Parts = Sequence[Mapping[str, Any]]
"""Parts of a message in the form of OpenAI's chat completions."""


@dataclass(frozen=True)
class ModelJudge(Verifier):
    """Base of verifiers that ask a model.

    The model is one of the config's `models`, by name; or `url` with `model`; or `callable`. A named
    model has its own limits; `key_env`, `seconds`, `attempts`, `budget` and `cache` are for the other two.

    Raises:
        ValueError: not exactly one of `url`, `callable` and a named model, or limits that make no sense.
    """

    waits: ClassVar[bool] = True

    url: str = ""
    """An endpoint such as `http://localhost:8000/v1`."""
    model: NamedModel | str = ""
    """One of the config's `models` by name; with `url`, the endpoint's name of the model."""
    callable: str = ""
    """`file.py:function`, given the list of messages, returns the reply's text."""
    key_env: str = "OPENAI_API_KEY"
    """The environment variable that holds the API key."""
    task: str = ""
    """What to judge."""
    media: bool = False
    """Whether it is shown the prompt's images, videos and audio, as the policy saw them."""
    truth: bool = True
    """Whether it is told what is known to be true."""
    draw: tuple[Drawn, ...] = ()
    """What is drawn, after the media, on a copy of the image that coordinates refer to: `answer`, the
    boxes or points of a candidate, in red; `truth`, the true places, in green. Labels are not written.
    Needs `media`."""
    part: str = "answer"
    """What is judged: `answer`, `text` (the whole completion) or a tag of the template."""
    seconds: float = 60.0
    """Seconds for one question, all of its attempts and pauses (which double) included; a `callable`
    bounds itself, and is called from several threads."""
    attempts: int = 3
    """Requests for one question."""
    budget: int | None = None
    """Requests of one process; None: no limit."""
    cache: str = ""
    """A file that keeps replies over runs; empty: memory."""
    max_tokens: int = 512
    """Tokens of the judge's reply."""
    max_chars: int = 8000
    """Characters of a candidate that are shown."""
    _asked: AskedModel = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.model, NamedModel):
            if self.url or self.callable:
                raise ValueError(
                    "model names one of the config's models: it goes with no url or callable"
                )
            for key in ("key_env", "seconds", "attempts", "budget", "cache"):
                if getattr(self, key) != type(self).__dataclass_fields__[key].default:
                    raise ValueError(f"{key} is set where the model is, in the config's models")
        elif bool(self.url) == bool(self.callable):
            raise ValueError(
                "set exactly one of url and callable, or name one of the config's models as model"
            )
        if self.url and not (self.url.startswith(("http://", "https://")) and self.model):
            raise ValueError("url starts with http:// or https:// and goes with a model's name")
        if self.draw and not self.media:
            raise ValueError("draw: the judge sees no image without media: true")
        if self.attempts < 1 or not self.seconds > 0:
            raise ValueError("attempts and seconds are positive")
        if not isinstance(self.model, NamedModel):
            identity = [self.url, self.model, self.callable]
            limits = AskLimits(THREADS, self.seconds, self.attempts, self.budget)
            replies = Replies(Path(self.cache) if self.cache else None)
            asked = AskedModel(identity, self._send, limits, replies)
            object.__setattr__(self, "_asked", asked)

    @property
    def concurrency(self) -> int:
        """Questions at a time."""
        return self.model.concurrency if isinstance(self.model, NamedModel) else THREADS

    @property
    def reads_truth(self) -> bool:
        """Whether it judges the answer."""
        return self.part == "answer"

    @property
    def looks(self) -> bool:
        """Whether it is shown the media."""
        return self.media

    def questions(self, group_size: int) -> int:
        """Return how many questions a group of completions takes at most, repeated attempts not counted."""
        return group_size

    def describe(self, sample: Sample) -> dict[str, Any]:
        """Return the question, and what is known to be true if it is told that."""
        return asking.describe(sample) if self.truth else {"question": sample.conversation}

    def candidate(self, completion: Completion) -> str:
        """Return the text that is judged, as much of it as is shown; empty if there is none."""
        return (asking.part_of(completion, self.part) or "")[: self.max_chars]

    def lacks_media(self, sample: Sample, seen: Seen | None) -> str:
        """Return why the model cannot be asked: it is to see media that are not at hand; else empty."""
        if self.media and seen is None and sample.media:
            return "judge: the media are not at hand: expected a run, or media: false"
        return ""

    def shows(self, seen: Seen | None) -> Parts:
        """Return the media as parts of a message; empty where it is to see none."""
        return media_parts(seen.media, seen.frames) if self.media and seen else []

    def marks(
        self, completion: Completion, sample: Sample, seen: Seen | None
    ) -> MarkedImage | None:
        """Return the image with what `draw` names; None where there is nothing to draw on."""
        return mark_image(completion, sample, seen, self.draw) if self.draw and seen else None

    def ask(
        self,
        rules: str,
        data: Mapping[str, Any],
        shown: Parts,
        read: Callable[[str], T],
        again: int = 0,
    ) -> T:
        """Return what `read` makes of the model's reply to the rules and, after what is shown, the data.

        `again` counts further times that the same is asked, which are questions of their own.

        Raises:
            Unavailable: no reply in time, or the budget is spent.
            Invalid: no reply that `read` could read.
        """
        body = {
            "messages": asking.messages(rules, data, shown),
            "temperature": 0.0,
            "max_tokens": self.max_tokens,
            **({"seed": again} if again else {}),
        }
        model = open_model(self.model) if isinstance(self.model, NamedModel) else self._asked
        return model.ask(body, read)

    def _send(self, body: Mapping[str, Any], seconds: float) -> Reply:
        if self.callable:
            function: Callable[..., Any] = plugins.load("verifier", self.callable)
            try:
                return Reply(str(function(list(body["messages"]))))
            except Exception as error:  # whatever a user's judge raises: it gave no reply
                raise Unavailable(f"{type(error).__name__}: {error}") from error
        return chat(self.url, {"model": self.model, **body}, os.environ.get(self.key_env), seconds)
