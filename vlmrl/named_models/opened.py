"""The named models of this process: all that name one share its limits, its memory and its counts."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vlmrl.config import NamedModel
from vlmrl.named_models.asked import AskedModel, AskLimits
from vlmrl.named_models.loaded import LoadedModel
from vlmrl.named_models.replies import in_folder
from vlmrl.system import distributed
from vlmrl.system.chat_endpoint import Reply, chat

__all__ = ["keeping_replies", "open_model", "take_metrics"]


class _Opened:
    """The models by definition, and the folder in which their replies are kept (None: memory)."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.models: dict[str, tuple[NamedModel, AskedModel]] = {}
        self.loaded: list[LoadedModel] = []
        self.folder: Path | None = None

    def open(self, model: NamedModel) -> AskedModel:
        """Make the model of a definition; a checkpoint is loaded when it is first asked."""
        replies = in_folder(self.folder, model.name)
        limits = AskLimits(
            model.concurrency, model.timeout_s, model.attempts, model.max_requests_per_step
        )
        if model.url:
            return AskedModel([model.url, model.model], _sender(model), limits, replies)
        loaded = LoadedModel(model)
        self.loaded.append(loaded)
        identity = [model.path, model.dtype]
        return AskedModel(identity, loaded.send, limits, replies, loaded.start)

    def close(self) -> None:
        with self.lock:
            for _, asked in self.models.values():
                asked.replies.close()
            for loaded in self.loaded:
                loaded.close()
            self.models, self.loaded = {}, []


_OPENED = _Opened()


def open_model(model: NamedModel) -> AskedModel:
    """Return the model of a definition: the same object for the same definition."""
    key = model.model_dump_json()
    with _OPENED.lock:
        if key not in _OPENED.models:
            _OPENED.models[key] = model, _OPENED.open(model)
        return _OPENED.models[key][1]


@contextlib.contextmanager
def keeping_replies(folder: Path) -> Iterator[None]:
    """Keep the replies of all named models in a folder while the context lasts, and recall those there."""
    _OPENED.close()
    _OPENED.folder = folder
    try:
        yield
    finally:
        _OPENED.close()
        _OPENED.folder = None


def take_metrics() -> dict[str, float]:
    """Return the numbers of a step, by model, over all ranks, and begin the next step's budgets.

    All ranks call it.
    """
    with _OPENED.lock:
        taken = [(model.name, asked.take_counts()) for model, asked in _OPENED.models.values()]
    counts: dict[str, Counter[str]] = {}
    for share in distributed.gather(taken):
        for name, found in share:
            counts.setdefault(name, Counter()).update(found)
    return {key: n for name in sorted(counts) for key, n in _metrics(name, counts[name]).items()}


def _metrics(name: str, counts: Mapping[str, int]) -> dict[str, float]:
    asked, answered = counts["asked"], counts["answered"]
    found = {
        f"model/{name}/questions": float(asked),
        f"model/{name}/requests": float(counts["requests"]),
        f"model/{name}/prompt_tokens": float(counts["prompt_tokens"]),
        f"model/{name}/completion_tokens": float(counts["completion_tokens"]),
    }
    if asked:
        found[f"model/{name}/known"] = counts["known"] / asked
        found[f"model/{name}/failed"] = counts["failed"] / asked
    if answered:
        found[f"model/{name}/seconds"] = counts["microseconds"] / 1e6 / answered
    return found


def _sender(model: NamedModel) -> Any:
    def send(body: Mapping[str, Any], seconds: float) -> Reply:
        return chat(
            model.url, {"model": model.model, **body}, os.environ.get(model.key_env), seconds
        )

    return send
