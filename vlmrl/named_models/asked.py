"""A model that is asked: attempts, deadline, concurrency, budget, memory and counts around its replies."""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import io
import json
import logging
import os
import random
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
import wave
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
from PIL import Image

from vlmrl.config import NamedModel
from vlmrl.errors import UserError
from vlmrl.schema import Frame, Media
from vlmrl.schema.media import Audio, Decoded, PilImage, Video
from vlmrl.system import distributed
from vlmrl.system.chat_endpoint import Invalid, NoText, Reply, Unavailable, chat
from vlmrl.system.processes import PARENT, TOKEN

# --------------------------------------------------------------------------------------------------
# What a model replied, by question, in files that outlive the run: nothing is asked twice.
#
# A file has one JSON line for each reply. Each rank writes a file of its own and reads those of all, so
# that a run goes on with any number of ranks, and no file has two writers. A killed run loses at most
# the line that it was writing.


log = logging.getLogger("vlmrl")


class Replies:
    """Replies by key; threads may share it. The files are read when the first reply is asked for.

    `own` is written, nothing if None; `others` are read as well.

    Raises:
        UserError: a file is none of replies.
    """

    def __init__(self, own: Path | None = None, others: Iterable[Path] = ()) -> None:
        self._own, self._others = own, tuple(others)
        self._lock = threading.Lock()
        self._known: dict[bytes, str] | None = None
        self._file: IO[bytes] | None = None
        self._is_torn = self._is_lost = False

    def recall(self, key: str) -> str | None:
        """Return the reply of a key (a hexadecimal digest), None if there is none."""
        with self._lock:
            return self._read_once().get(bytes.fromhex(key))

    def remember(self, key: str, reply: str) -> None:
        """Keep a reply; what a full disk has no room for is kept in memory, as a line of the log says."""
        with self._lock:
            self._read_once()[bytes.fromhex(key)] = reply
            if self._own is not None:
                try:
                    self._append(self._own, key, reply)
                except OSError as error:
                    self._is_torn = True
                    if not self._is_lost:
                        log.warning("replies are no longer kept in %s: %s", self._own, error)
                    self._is_lost = True

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._file is not None:
                self._file.close()
            self._file = None

    def _read_once(self) -> dict[bytes, str]:
        if self._known is None:
            known: dict[bytes, str] = {}
            for path in (*self._others, *([self._own] if self._own else [])):
                if path.exists():
                    known |= _read(path)
            self._known = known
        return self._known

    def _append(self, own: Path, key: str, reply: str) -> None:
        if self._file is None:
            own.parent.mkdir(parents=True, exist_ok=True)
            self._file = own.open("ab", buffering=0)
            self._is_torn = self._file.tell() > 0  # the last line may be half a one
        line = json.dumps({"key": key, "reply": reply}) + "\n"
        self._file.write(("\n" if self._is_torn else "").encode() + line.encode())
        self._is_torn = False


def _read(path: Path) -> dict[bytes, str]:
    replies: dict[bytes, str] = {}
    with path.open("rb") as file:
        if (first := file.read(1)) not in (b"", b"\n", b"{"):
            raise UserError(f"{path}: expected replies as JSON lines, got {first!r} ...")
        file.seek(0)
        for line in file:
            try:
                fields = json.loads(line)
                replies[bytes.fromhex(fields["key"])] = str(fields["reply"])
            except (ValueError, TypeError, KeyError):
                continue  # half a line of a run that was killed, or a blank one
    return replies


# --------------------------------------------------------------------------------------------------
# Decoded media as parts of a message, in the form of OpenAI's chat completions.
#
# An image is a PNG (lossless), a video its frames with the second of each, audio a WAV of 16 bits.


Part = dict[str, Any]


def text_part(text: str) -> Part:
    """Return a text."""
    return {"type": "text", "text": text}


def image_part(image: PilImage) -> Part:
    """Return an image."""
    stream = io.BytesIO()
    image.save(stream, "PNG", compress_level=1)
    data = base64.b64encode(stream.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def media_parts(media: Sequence[Decoded], frames: Sequence[Frame]) -> list[Part]:
    """Return media, numbered by kind as a prompt shows them; `frames` say in which size each was seen."""
    parts, numbers = [], {"Image": 0, "Video": 0, "Audio": 0}
    for medium, frame in zip(media, frames, strict=True):
        kind = next(kind for kind in numbers if isinstance(medium, _TYPES[kind]))
        numbers[kind] += 1
        name = f"{kind} {numbers[kind]}"
        parts += [text_part(f"{name}:"), *_shown(medium, frame, name)]
    return parts


def turn_parts(parts: Sequence[str | Media], shown: Iterator[tuple[Decoded, Frame]]) -> list[Part]:
    """Return the parts of a turn where they stand, without names; `shown` are its media, then later ones.

    A video is its frames with the second of each.
    """
    content: list[Part] = []
    for part in parts:
        content += [text_part(part)] if isinstance(part, str) else _shown(*next(shown), part.kind)
    return content


_TYPES: dict[str, type] = {"Image": PilImage, "Video": Video, "Audio": Audio}


def _shown(medium: Decoded, frame: Frame, name: str) -> list[Part]:
    if isinstance(medium, Audio):
        return [_audio_part(medium)]
    if not isinstance(medium, Video):
        return [image_part(image) for image in frames_of(medium, frame)]
    parts = []
    for still, shown_at in zip(frames_of(medium, frame), medium.times, strict=True):
        parts += [text_part(f"{name}, {shown_at:.2f} s:"), image_part(still)]
    return parts if medium.audio is None else [*parts, _audio_part(medium.audio)]


def frames_of(medium: PilImage | Video, frame: Frame) -> list[PilImage]:
    """Return an image, or the frames of a video, as large as the policy saw them."""
    if isinstance(medium, Video):
        return [as_seen(Image.fromarray(pixels), frame) for pixels in medium.frames]
    return [as_seen(medium, frame)]


def as_seen(image: PilImage, frame: Frame) -> PilImage:
    """Return an image as large as the policy saw it, where that is known."""
    size = frame.resized_width, frame.resized_height
    if size[0] is None or size[1] is None or size == image.size:
        return image
    return image.resize((size[0], size[1]), Image.Resampling.BICUBIC)


def _audio_part(audio: Audio) -> Part:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(audio.rate)
        file.writeframes((np.clip(audio.samples, -1, 1) * 32767).astype("<i2").tobytes())
    data = base64.b64encode(stream.getvalue()).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


# --------------------------------------------------------------------------------------------------
# Attempts, deadline, concurrency and budget of a model that is asked.


FIRST_PAUSE = 0.5
LONGEST_PAUSE = 20.0

PROBE: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Reply with OK."}],
    "max_tokens": 8,
}
"""What a model is asked to see whether it is there."""

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
        self.identity, self._send, self._limits = [*identity], send, limits
        self._ready = ready
        self._turns = threading.BoundedSemaphore(limits.concurrency)
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._under_way: dict[str, Future[str]] = {}
        self.num_requests = 0
        """Requests since it was made, without those of `probe`."""
        self.replies = replies

    def ask(self, body: Mapping[str, object], read: Callable[[str], T]) -> T:
        """Return what `read` makes of the model's reply to a request's `body`, from memory if it is there.

        The body has the messages and all else that decides the reply. `read` raises Invalid for a reply
        that is not what was asked for: it is asked again, and only what can be read is remembered. A
        question that another thread is asking is not asked a second time.

        Raises:
            Unavailable: no reply in time, or the budget is spent.
            Invalid: no reply that could be read.
        """
        asked = json.dumps([self.identity, body], sort_keys=True)
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
                reading = read(other.result() if other is not None else str(known))
                self._count("known", 1)
                return reading
            return self._ask(key, own, body, read)
        except (Unavailable, Invalid):
            self._count("failed", 1)
            raise

    def probe(self, attempts: int | None = None, seconds: float | None = None) -> None:
        """Send one small question outside of budget, counts and memory; any chat completion will do.

        `attempts` and `seconds` of each are the model's own, if they are not given.

        A model that refuses this question (400, 422), such as one that scores images, is there all the same.

        Raises:
            Unavailable: no reply in all attempts.
            Invalid: a reply that is no chat completion.
        """
        attempts, seconds = attempts or self._limits.attempts, seconds or self._limits.timeout_s
        for attempt in range(1, attempts + 1):
            try:
                self._ready()
                self._send(PROBE, seconds)
            except NoText:
                return
            except Unavailable as error:
                if error.status in (400, 422):
                    return
                if not error.again or attempt == attempts:
                    raise
                pause = FIRST_PAUSE * 2 ** (attempt - 1)
                time.sleep(
                    min(pause if error.retry_after is None else error.retry_after, LONGEST_PAUSE)
                )
            else:
                return

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
        self, key: str, own: Future[str], body: Mapping[str, object], read: Callable[[str], T]
    ) -> T:
        try:
            with self._turns:
                text, reading = self._attempt(body, read)
            self.replies.remember(key, text)
            own.set_result(text)
            return reading
        except BaseException as error:
            own.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._under_way[key]

    def _attempt(self, body: Mapping[str, object], read: Callable[[str], T]) -> tuple[str, T]:
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
                retry_after = error.retry_after if isinstance(error, Unavailable) else None
                wait = (retry_after if retry_after is not None else pause) * random.uniform(
                    1.0, 1.25
                )
                late = time.monotonic() + wait >= end
                if not again or attempt == self._limits.attempts or late:
                    raise
                time.sleep(wait)
                pause = min(2 * pause, LONGEST_PAUSE)
        raise AssertionError("attempts is at least 1")

    def _request(self, body: Mapping[str, object], seconds: float) -> Reply:
        with self._lock:
            budget = self._limits.max_requests
            if budget is not None and self._counts["requests"] >= budget:
                raise Unavailable(f"the budget of {budget} requests is spent", again=False)
            self._counts["requests"] += 1
            self.num_requests += 1
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


# --------------------------------------------------------------------------------------------------
# A checkpoint in a process of its own: `vlmrl serve` on the loopback, for the process that asks it alone.
#
# The asker's memory and random numbers are its own. The process is started when it is first asked, killed
# when it does not answer in time, and started again by the next question. It ends with its owner, however
# that ends.


START_S = 1800.0
"""Seconds within which a checkpoint must be loaded."""
LOOK_S = 0.1
"""Seconds between two looks at whether it is."""
MAX_STARTS = 3
"""Times in a row that a process may end before it has loaded its checkpoint."""
BATCH = 8
"""Most questions that it answers in one pass."""
ADDRESS = re.compile(r"^serving .* at (http://\S+)", re.MULTILINE)
"""What the server prints once its checkpoint is loaded."""


class LoadedModel:
    """The process of a checkpoint. Several threads may use it."""

    def __init__(self, model: NamedModel) -> None:
        self._model = model
        self._token = secrets.token_urlsafe()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._url = ""
        self._failed = 0  # starts in a row

    def start(self) -> None:
        """Return when the checkpoint is loaded; else Unavailable with its process's last lines."""
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                return
            if self._failed >= MAX_STARTS:
                raise Unavailable(self._last_words(), again=False)
            self._stop()
            self._folder = tempfile.TemporaryDirectory(prefix="vlmrl-model-")
            self._process = self._launch(Path(self._folder.name) / "log")
            try:
                self._url = self._wait(self._process)
            except Unavailable:
                # What never worked, such as a wrong path, does not work the next time.
                self._failed = self._failed + 1 if self._url else MAX_STARTS
                raise
            self._failed = 0

    def send(self, body: Mapping[str, object], seconds: float) -> Reply:
        """Return what `chat` does; kill the process if it lets most of a question's time pass."""
        process, begun = self._process, time.monotonic()
        try:
            return chat(self._url, {**body, "model": self._model.name}, self._token, seconds)
        except Unavailable:
            if process is not None and time.monotonic() - begun >= self._model.timeout_s / 2:
                _kill(process)
            raise

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._stop()

    def _launch(self, log: Path) -> subprocess.Popen[bytes]:
        m = self._model
        options = ["--port", "0", "--name", m.name, "--engine", "hf", "--dtype", m.dtype]
        options += ["--batch", str(min(m.concurrency, BATCH))]
        environment = distributed.outside(os.environ)
        devices = _devices(m.devices, os.environ)
        if devices is not None:
            environment["CUDA_VISIBLE_DEVICES"] = devices
        environment |= {TOKEN: self._token, PARENT: str(os.getpid()), "PYTHONUNBUFFERED": "1"}
        with log.open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "vlmrl", "serve", m.path, *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the owner; the process dies as one group
            )

    def _wait(self, process: subprocess.Popen[bytes]) -> str:
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            ended = process.poll() is not None
            if address := ADDRESS.search(self._said()):
                return address[1]
            if ended:
                raise Unavailable(self._last_words(), again=False)
            time.sleep(LOOK_S)
        _kill(process)
        raise Unavailable(f"not loaded within {START_S:g} s: {self._last_words()}", again=False)

    def _said(self) -> str:
        if self._folder is None:
            return ""
        log = Path(self._folder.name) / "log"
        return log.read_text(errors="replace") if log.exists() else ""

    def _last_words(self) -> str:
        lines = [line.strip() for line in self._said().splitlines() if line.strip()]
        return f"its process ended: {' | '.join(lines[-2:]) or 'it wrote nothing'}"

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            _kill(process)
            process.wait()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _devices(chosen: str | None, environment: Mapping[str, str]) -> str | None:
    """Return the CUDA_VISIBLE_DEVICES of a process of this rank; None: it sees what this one does."""
    visible, rank = environment.get("CUDA_VISIBLE_DEVICES"), environment.get("LOCAL_RANK")
    if chosen is not None or rank is None:
        return visible if chosen is None else chosen
    if visible is None:
        return rank
    names = visible.split(",")
    return names[int(rank) % len(names)]


# --------------------------------------------------------------------------------------------------
# The named models of this process: all that name one share its limits and its counts.


class _Opened:
    """The models by definition, and the folder in which their replies are kept (None: memory)."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.models: dict[str, tuple[NamedModel, AskedModel]] = {}
        self.loaded: list[LoadedModel] = []
        self.folder: Path | None = None

    def open(self, model: NamedModel) -> AskedModel:
        """Make the model of a definition; a checkpoint is loaded when it is first asked."""
        replies = Replies()
        if self.folder is not None:  # of this rank, and what other ranks have left
            own = self.folder / f"{model.name}.rank{distributed.rank()}.jsonl"
            replies = Replies(own, sorted({*self.folder.glob(f"{model.name}.rank*.jsonl")} - {own}))
        limits = AskLimits(
            model.concurrency, model.timeout_s, model.attempts, model.max_requests_per_step
        )
        if model.url:
            send = functools.partial(_send, model)
            return AskedModel([model.url, model.model], send, limits, replies)
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
        for name, counted in share:
            counts.setdefault(name, Counter()).update(counted)
    return {key: n for name in sorted(counts) for key, n in _metrics(name, counts[name]).items()}


def _metrics(name: str, counts: Mapping[str, int]) -> dict[str, float]:
    asked, answered = counts["asked"], counts["answered"]
    metrics = {
        f"model/{name}/questions": float(asked),
        f"model/{name}/requests": float(counts["requests"]),
        f"model/{name}/prompt_tokens": float(counts["prompt_tokens"]),
        f"model/{name}/completion_tokens": float(counts["completion_tokens"]),
    }
    if asked:
        metrics[f"model/{name}/known"] = counts["known"] / asked
        metrics[f"model/{name}/failed"] = counts["failed"] / asked
    if answered:
        metrics[f"model/{name}/seconds"] = counts["microseconds"] / 1e6 / answered
    return metrics


def _send(model: NamedModel, body: Mapping[str, object], seconds: float) -> Reply:
    return chat(model.url, {"model": model.model, **body}, os.environ.get(model.key_env), seconds)
