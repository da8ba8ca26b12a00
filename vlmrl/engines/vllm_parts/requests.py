"""A prompt as a request to vLLM, its media on their way there, and the checks on the answer.

Media go within the request, or in files that both sides can read. A file is named by its content and written
once, however many requests name it: the rollouts of a group and their turns show the same media. Nothing is
compressed (vLLM's own way for frames of videos is JPEG, which loses) and nothing is unpickled: a video is
one line of JSON, then the bytes of the frames that the trainer has. The server reads it with a loader of
ours.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vlmrl.engines.base import Sampling, ServedPolicy
from vlmrl.engines.completions import Sampled
from vlmrl.engines.vllm_parts.adapted_vllm import ADAPTER
from vlmrl.errors import LostEngine, UserError
from vlmrl.schema import Prompt
from vlmrl.schema.media import Audio, Decoded, Video
from vlmrl.system.seeds import seed_of

BAN = -100.0
"""Logit bias of a media token; vLLM takes no stronger one."""

LOADER = "vlmrl"
"""Name of our video loader in vLLM (`serve` registers it), with which servers read all videos."""

VllmVideo = tuple[np.ndarray, dict[str, Any]]
"""What vLLM takes for a video: frames uint8 [T, H, W, 3] and the metadata that transformers takes."""

Part = dict[str, str]
"""A medium as an entry of a request's `content_parts`."""

KEPT = 2**30
"""Bytes of files of which a process removes those that no request in flight names."""


class EngineFault(Exception):
    """The engine, not the user, went wrong: restart it and ask again."""


def end_run(fault: EngineFault) -> LostEngine:
    """Return the error that ends a run of several processes after a fault."""
    return LostEngine(
        f"{fault} (with several processes vLLM is not started again within a step: continue from the "
        "last checkpoint with resume=auto)"
    )


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """An engine's completions of one prompt."""

    prompt_ids: tuple[int, ...]
    """The prompt after media expansion, as the engine saw it."""
    group: tuple[Sampled, ...]

    def repeated(self, n: int) -> ServerAnswer:
        """Return the answer to a greedy request, which vLLM writes once, as `n` equal completions."""
        return ServerAnswer(self.prompt_ids, self.group * n)


def sampling_fields(
    policy: ServedPolicy, sampling: Sampling, prompt: int, guesses: bool = False
) -> dict[str, Any]:
    """Return the fields of vLLM's SamplingParams for prompt number `prompt` of a batch.

    With `guesses` (`speculative_tokens`) vLLM takes no bias, but words that must not be written.

    The temperature is not among them: the logits are scaled by it (`adapted_vllm.set_temperature`), so
    that vLLM's raw log-probs are those at the temperature, before bans and cuts.
    """
    return {
        "n": 1 if sampling.greedy else sampling.n,  # vLLM refuses a group of equal completions
        "max_tokens": sampling.max_tokens,
        "temperature": 0.0 if sampling.greedy else 1.0,
        "top_p": 1.0 if sampling.greedy else sampling.top_p,
        "top_k": 0 if sampling.greedy else sampling.top_k,
        # Completion i gets seed + i; a hash, that of `Sampling.at`, keeps prompts from sharing draws.
        "seed": (sampling.keys[prompt][0] if sampling.keys else seed_of(sampling.seed, prompt))
        >> 1,
        "logprobs": 0,
        "stop_token_ids": list(policy.stop_ids),
        "ignore_eos": True,  # stop_token_ids are all that stop
        "detokenize": False,
        **(
            {"bad_words": policy.tokenizer.convert_ids_to_tokens(policy.banned.tolist())}
            if guesses
            else {"logit_bias": {int(token): BAN for token in policy.banned}}
        ),
    }


def media_data(prompt: Prompt) -> dict[str, list[Any]]:
    """Return vLLM's `multi_modal_data`: decoded media by kind; of videos the frames that were taken."""
    data: dict[str, list[Any]] = {
        "image": list(prompt.images),
        "audio": [(m.samples, m.rate) for m in prompt.media if isinstance(m, Audio)],
        "video": [as_seen(m) for m in prompt.media if isinstance(m, Video)],
    }
    return {kind: media for kind, media in data.items() if media}


def request(
    prompt: Prompt, fields: Mapping[str, object], media: Sequence[Part], adapter: bool = False
) -> dict[str, Any]:
    """Return the body of the request for one prompt with its media."""
    return {
        **({"model": ADAPTER} if adapter else {}),
        "token_ids": list(prompt.encoded.compact_ids),
        "content_parts": list(media),
        "sampling_params": fields,
        "return_token_ids": True,
    }


# ----------------------------------------------------------------------------------------- answers


def check(
    prompt: Prompt,
    answer: ServerAnswer,
    policy: ServedPolicy,
    sampling: Sampling,
    versions: tuple[int, int],
) -> None:
    """Raise unless the answer is whole, of this prompt, and by weights of these versions.

    `versions` are the first and the last that it may be by: equal unless weights change in flight.

    Raises:
        UserError: the engine saw other prompt tokens than the trainer; asking again cannot help.
        EngineFault: anything else that is wrong.
    """
    require_same_prompt(prompt, answer.prompt_ids)
    if len(answer.group) != sampling.n:
        raise EngineFault(f"{len(answer.group)} completions came back for n = {sampling.n}")
    vocabulary = policy.base.config.get_text_config().vocab_size
    banned, stops = set(policy.banned.tolist()), set(policy.stop_ids)
    for written in answer.group:
        problem = _problem(written, vocabulary, banned, stops, sampling.max_tokens)
        first, last = versions
        if problem is None and not all(first <= v <= last for v, _ in written.versions):
            problem = f"it is by weights {written.versions}, not by version {first} (to {last})"
        if problem is not None:
            raise EngineFault(f"sample {prompt.sample.id!r}, a completion: {problem}")


def _problem(
    written: Sampled, vocabulary: int, banned: set[int], stops: set[int], limit: int
) -> str | None:
    ids, logprobs = written.token_ids, written.logprobs
    if not ids or len(ids) > limit or len(logprobs) != len(ids):
        return f"{len(ids)} tokens (limit {limit}) with {len(logprobs)} log-probs"
    if not all(0 <= token < vocabulary for token in ids):
        return f"token {max(ids)} outside the vocabulary of {vocabulary}"
    if banned & set(ids):
        return f"it holds the media token {min(banned & set(ids))}"
    if not all(math.isfinite(p) and p <= 1e-3 for p in logprobs):
        return "a log-prob is not finite or above 0"
    stopped = ids[-1] in stops
    if written.finish_reason != ("stop" if stopped else "length"):
        return f"it says {written.finish_reason!r} after token {ids[-1]}"
    if not stopped and len(ids) != limit:
        return f"it breaks off after {len(ids)} of {limit} tokens"
    if sum(count for _, count in written.versions) != len(ids):
        return f"versions {written.versions} for {len(ids)} tokens"
    return None


def require_same_prompt(prompt: Prompt, seen: Sequence[int]) -> None:
    """Refuse an answer to other prompt tokens than the trainer's.

    Raises:
        UserError: names the sample and where they differ.
    """
    ours = prompt.encoded.ids
    if tuple(seen) == ours:
        return
    differs = next(
        (i for i, (a, b) in enumerate(zip(ours, seen, strict=False)) if a != b),
        min(len(ours), len(seen)),
    )
    a, b = (list(ids[differs : differs + 5]) for ids in (ours, seen))
    raise UserError(
        f"sample {prompt.sample.id!r}: {len(ours)} prompt tokens in the trainer, {len(seen)} in "
        f"vLLM, which differ from position {differs} on ({a} against {b}): another "
        "processor, pixel limit or chat template?"
    )


# ------------------------------------------------------------------------------------------- media


def make_shared(inside: str | Path | None) -> tempfile.TemporaryDirectory[str] | None:
    """Make the folder that all servers read and all ranks have a folder of their own in; None: none.

    Raises:
        UserError: nothing can be written there.
    """
    if inside is None:
        return None
    try:
        return tempfile.TemporaryDirectory(prefix="vlmrl-media-", dir=inside)
    except OSError as error:
        raise UserError(f"engine option media_folder: {error}") from error


class MediaFolder:
    """Files of media that this process has written for its servers; used by many threads."""

    def __init__(self, folder: Path, limit: int = KEPT) -> None:
        """Keep at most `limit` bytes in `folder`, which is made."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._limit = folder.resolve(), limit
        self._lock = threading.Lock()
        self._sizes: dict[str, int] = {}
        self._held = 0
        self._users: dict[str, int] = {}

    @contextmanager
    def lend(self, media: Sequence[Decoded]) -> Iterator[list[Part]]:
        """Give the parts of a request; their files stay until the end of this block.

        A medium for which the folder has no room goes within the request.
        """
        names: list[str] = []
        try:
            yield [self._part(medium, names) for medium in media]
        finally:
            with self._lock:
                for name in names:
                    self._users[name] -= 1

    def _part(self, medium: Decoded, names: list[str]) -> Part:
        kind, mime, data = _encode(medium)
        name = hashlib.blake2b(data, digest_size=20, person=kind.encode()).hexdigest()
        with self._lock:
            if name not in self._sizes and not self._write(name, data):
                return _inline(kind, mime, data)
            self._sizes[name] = self._sizes.pop(name)  # the last one used
            self._users[name] = self._users.get(name, 0) + 1
            names.append(name)
        return {"type": f"{kind}_url", "url": (self._folder / name).as_uri()}

    def _write(self, name: str, data: bytes) -> bool:
        """Write a file, and say whether there was room for it; unused ones go for that."""
        if self._held + len(data) > self._limit:
            for unused in [name for name in self._sizes if not self._users[name]]:
                (self._folder / unused).unlink(missing_ok=True)
                self._held -= self._sizes.pop(unused)
                del self._users[unused]
                if self._held + len(data) <= self._limit:
                    break
            else:
                return False
        try:
            (self._folder / name).write_bytes(data)
        except OSError:  # full
            (self._folder / name).unlink(missing_ok=True)
            return False
        self._sizes[name] = len(data)
        self._held += len(data)
        return True


@contextmanager
def lend(media: Sequence[Decoded], folder: MediaFolder | None) -> Iterator[list[Part]]:
    """Give the parts of a request, which are good until the end of this block.

    Without a folder whole media are in them.
    """
    if folder is None:
        yield [_inline(*_encode(medium)) for medium in media]
        return
    with folder.lend(media) as parts:
        yield parts


def _encode(medium: Decoded) -> tuple[str, str, bytes]:
    """Return kind, MIME type and bytes: the form that costs both sides the least time."""
    buffer = io.BytesIO()
    if isinstance(medium, Audio):
        import soundfile  # with the extra `audio`, which whoever decoded this has

        soundfile.write(buffer, medium.samples, medium.rate, format="WAV", subtype="FLOAT")
        return "audio", "audio/wav", buffer.getvalue()
    if isinstance(medium, Video):
        return "video", "video/x-vlmrl", pack(as_seen(medium))
    medium.save(buffer, "BMP")
    return "image", "image/bmp", buffer.getvalue()


def _inline(kind: str, mime: str, data: bytes) -> Part:
    encoded = base64.b64encode(data).decode()
    return {"type": f"{kind}_url", "url": f"data:{mime};base64,{encoded}"}


def as_seen(video: Video) -> VllmVideo:
    """Return the video for vLLM as the trainer's model sees it: no frame left out or sampled again."""
    return video.frames, {**video.metadata, "do_sample_frames": False}


def pack(video: VllmVideo) -> bytes:
    """Return frames and metadata as bytes; `unpack` turns them back."""
    frames, metadata = video
    head = json.dumps({"shape": frames.shape, "metadata": metadata})
    return head.encode() + b"\n" + frames.tobytes()


def unpack(data: bytes) -> VllmVideo:
    """Return the frames and metadata that were packed.

    Raises:
        ValueError: these bytes are not a packed video.
    """
    head, _, pixels = data.partition(b"\n")
    try:
        header = json.loads(head)
        shape, metadata = header["shape"], header["metadata"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError("expected a video as vlmrl packs it, got other data") from error
    frames = np.frombuffer(bytearray(pixels), np.uint8).reshape(shape)  # writable
    if frames.ndim != 4 or frames.shape[-1] != 3:
        raise ValueError(f"expected frames [T, H, W, 3], got {list(frames.shape)}")
    return frames, metadata


def register_loader() -> None:
    """Make vLLM read videos that were packed; in every process that answers requests."""
    from vllm.multimodal.video import VIDEO_LOADER_REGISTRY, VideoLoader

    @VIDEO_LOADER_REGISTRY.register(LOADER)
    class Packed(VideoLoader):
        @classmethod
        def load_bytes(cls, data: bytes, **_: Any) -> VllmVideo:
            return unpack(data)
