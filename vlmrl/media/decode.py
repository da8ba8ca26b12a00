"""A sample's media, decoded: in line, or ahead of use in processes, in the samples' order.

A hostile file can hang a decoder, crash it, or make it take all memory. So whatever is not a plain
small image (`image.py`) is decoded in a process with a deadline and a ceiling on memory, whether or
not anything is decoded ahead of use. The limits of a row hold for all of its files together.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from pebble import ProcessExpired

from vlmrl.errors import DiskError, MediaError, MissingExtra, UserError
from vlmrl.media.access import Access, Reading, check_disk, locate, open_media
from vlmrl.media.image import (
    PLAIN_BYTES,
    PLAIN_COUNT,
    PLAIN_MEMORY,
    decode_image,
    measure,
    read_header,
)
from vlmrl.schema import Media, Sample, Truth
from vlmrl.schema.media import Decoded, PilImage, Video
from vlmrl.system.deadline_pool import DeadlinePool, TimedPool, TooLate
from vlmrl.system.processes import memory_ceiling

_BOUNDED = DeadlinePool(1)
"""Decodes for callers without a pool of their own what must not be decoded in their process."""
HEAD = 65536
"""Bytes of a file in which the size of an image is looked for."""
NAMED = 4
"""Files of a row that a message names."""
COMPRESSION = 8
"""Decoded bytes per byte of a file that does not tell; a guess."""

T = TypeVar("T")
Outcome = list[Decoded] | UserError
"""A sample's media in prompt order, or why there are none."""


def decode(sample: Sample, access: Access, reading: Reading | None = None) -> list[Decoded]:
    """Return the sample's media in prompt order: RGB images, videos, audio.

    A card that converted pixels by a stated size leaves it in `meta["size"]`: it must be that of the
    first image or video, or every box would be silently wrong (an image that was scaled, or turned
    by EXIF).

    Raises:
        MediaError: one cannot be read or has not the stated size, or they exceed a limit of a row;
            the message names it.
        DiskError: no file can be read.
    """
    outcome = _decode_now(DecodeJob(None, sample, access, reading or Reading()))
    if isinstance(outcome, UserError):
        raise outcome
    assert outcome is not None
    return outcome


def measure_image(media: Media, access: Access) -> tuple[int, int]:
    """Return (width, height) in pixels of the upright image.

    Raises:
        MediaError: it cannot be read; the message names it.
        DiskError: no file can be read.
    """
    with open_media(media, access) as stream:
        data = stream.read(PLAIN_BYTES)
    header = read_header(data)
    if header is not None and header.plain:
        return measure(io.BytesIO(data), media.name)
    (image,) = decode(Sample(media.name, "", (media,), Truth()), access)
    assert isinstance(image, PilImage)
    return image.size


@dataclass(frozen=True, slots=True)
class DecodeJob(Generic[T]):
    """Something to decode: `sample` is an error if the row was bad, None if that was known."""

    key: T
    sample: Sample | UserError | None
    access: Access
    reading: Reading = field(default_factory=Reading)


def decode_in_order(
    jobs: Iterable[DecodeJob[T]], pool: TimedPool | None, ahead: int, max_bytes: int
) -> Iterator[tuple[DecodeJob[T], Outcome | None]]:
    """Yield each job with its media or its error (None for a known bad row), in the jobs' order.

    With a pool, up to `ahead` jobs and about `max_bytes` of decoded media are under way or waiting;
    at least one always is. Without a pool each is decoded when it is asked for.
    """
    if pool is None:
        for job in jobs:
            yield job, _decode_now(job)
        return
    waiting: deque[tuple[DecodeJob[T], Any, int]] = deque()
    held = 0
    source = iter(jobs)
    following = next(source, None)
    while waiting or following:
        while following and (not waiting or len(waiting) < ahead):
            size = _decoded_bytes(following)
            if waiting and held + size > max_bytes:
                break
            waiting.append((following, _submit(pool, following), size))
            held += size
            following = next(source, None)
        job, future, size = waiting.popleft()
        held -= size
        yield job, _result(job, future)


def _decode_now(job: DecodeJob[Any]) -> Outcome | None:
    """Decode here if that is harmless, else in the process for it."""
    if not isinstance(job.sample, Sample):
        return job.sample
    sample = job.sample
    outcome = _guard(sample, lambda: _decode_plain(sample, job.access, job.reading))
    return _result(job, _submit(_BOUNDED, job)) if outcome is None else outcome


def _submit(pool: TimedPool, job: DecodeJob[Any]) -> Any:
    if not isinstance(job.sample, Sample) or not job.sample.media:
        return None
    arguments = (job.sample, job.access, job.reading)
    return pool.submit(_decode_bounded, *arguments, deadline=job.reading.seconds)


def _result(job: DecodeJob[Any], future: Any) -> Outcome | None:
    """Wait for what a worker made of a job; whatever went wrong there is about the job's row."""
    if not isinstance(job.sample, Sample):
        return job.sample
    if future is None:
        return []
    reading = job.reading
    try:
        outcome: Outcome = future.result()
    except TooLate:
        reason = f"not decoded within data.decode_timeout_s ({reading.seconds:g} s)"
        return _refusal(job.sample, reason)
    except ProcessExpired as error:
        # A library may abort where an allocation fails, instead of saying so.
        return _refusal(
            job.sample,
            f"the decoding process died (exit code {error.exitcode}); it may not need more than "
            f"data.decode_memory_mb ({reading.memory_mb} MiB)",
        )
    except (DiskError, CancelledError, BrokenProcessPool, MissingExtra):  # not about this row
        raise
    except Exception as error:
        return _refusal(job.sample, f"cannot be decoded: {type(error).__name__}: {error}")
    return outcome


def _decode_bounded(sample: Sample, access: Access, reading: Reading) -> Outcome | None:
    """Decode in a worker, where allocations beyond the ceiling fail."""
    if any(medium.kind != "image" for medium in sample.media):
        # Readers are loaded by kind, and before the ceiling: what their libraries take is not the row's.
        from vlmrl.media import audio, video  # noqa: F401
    try:
        with memory_ceiling(reading.memory_mb * 2**20):
            return _guard(sample, lambda: _decode_any(sample, access, reading))
    except MemoryError:
        limit = f"data.decode_memory_mb ({reading.memory_mb} MiB)"
        return _refusal(sample, f"needs more than {limit} to decode")


def _guard(sample: Sample, function: Callable[[], list[Decoded] | None]) -> Outcome | None:
    """Call a function, or return why it failed; whatever a decoder raises is about the sample's row.

    Errors travel as values: a worker's exception would come back without its type.

    Raises:
        DiskError: no file can be read.
        MemoryError: an allocation failed.
    """
    try:
        return function()
    except (DiskError, MemoryError, MissingExtra):  # not about this row
        raise
    except Exception as error:
        for medium in sample.media:
            if medium.path is not None:
                check_disk(Path(medium.path))
        if isinstance(error, UserError):
            return error
        return _refusal(sample, f"cannot be decoded: {type(error).__name__}: {error}")


def _refusal(sample: Sample, reason: str) -> MediaError:
    names = [medium.name for medium in sample.media]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return MediaError(f"{', '.join(names[:NAMED])}{more}: {reason}")


# --------------------------------------------------------------------------------------- a sample


def _decode_plain(sample: Sample, access: Access, reading: Reading) -> list[Decoded] | None:
    """Decode a sample of few, small and ordinary images; return None for any other."""
    files, memory, room = [], 0, PLAIN_BYTES
    if len(sample.media) > PLAIN_COUNT:
        return None
    for medium in sample.media:
        if medium.kind != "image" or medium.url is not None:
            return None
        with open_media(medium, access) as stream:
            room -= stream.seek(0, io.SEEK_END)
            if room < 0:
                return None
            stream.seek(0)
            data = stream.read()
        header = read_header(data)
        if header is None or not header.plain:
            return None
        memory += header.memory
        files.append((data, medium.name))
    if memory > PLAIN_MEMORY or (PLAIN_BYTES - room) > access.max_mb * 2**20:
        return None
    images = _decode_images(((io.BytesIO(data), name) for data, name in files), reading)
    return _check_stated(sample, [*images])


def _decode_any(sample: Sample, access: Access, reading: Reading) -> list[Decoded]:
    _check_bytes(sample, access)
    images = [medium for medium in sample.media if medium.kind == "image"]
    shown = _decode_images(((open_media(m, access), m.name) for m in images), reading)
    decoded: list[Decoded] = []
    for medium in sample.media:
        if medium.kind == "image":
            decoded.append(next(shown))
        elif medium.kind == "audio":
            from vlmrl.media.audio import load_audio

            decoded.append(load_audio(medium, access, reading.audio))
        else:
            from vlmrl.media.video import load_video

            audio = reading.audio if reading.with_audio else None
            decoded.append(load_video(medium, access, reading.video, audio))
    return _check_stated(sample, decoded)


def _decode_images(files: Iterable[tuple[Any, str]], reading: Reading) -> Iterator[PilImage]:
    """Yield the images of open files; all together have no more pixels than allowed."""
    left = reading.max_pixels
    for stream, name in files:
        with stream:
            image = decode_image(stream, name, left)
        left -= image.width * image.height
        yield image


def _check_bytes(sample: Sample, access: Access) -> None:
    total = 0
    for medium in sample.media:
        for part in [Media("image", path=name) for name in medium.frames or ()] or [medium]:
            path = locate(part, access)
            total += len(part.data or b"") if path is None else path.stat().st_size
    if total > access.max_mb * 2**20:
        raise _refusal(
            sample, f"{total / 2**20:.1f} MiB, more than data.max_media_mb ({access.max_mb}) allows"
        )


def _check_stated(sample: Sample, decoded: list[Decoded]) -> list[Decoded]:
    """Return what was decoded, if the main image or video has the size that the row states."""
    stated, main = sample.meta.get("size"), sample.main_medium
    first = None if main is None else decoded[main]
    if stated is None or not isinstance(first, PilImage | Video):
        return decoded
    real = first.original if isinstance(first, Video) else first.size
    if real != tuple(stated):
        (width, height), name = stated, sample.media[main or 0].name
        raise MediaError(
            f"{name}: the row says {width}x{height} pixels, upright it has {real[0]}x{real[1]}"
        )
    return decoded


def _decoded_bytes(job: DecodeJob[Any]) -> int:
    """Return about the bytes of the decoded media: images by header or file, others at their largest."""
    if not isinstance(job.sample, Sample):
        return 0
    total = 0
    for medium in job.sample.media:
        if medium.kind == "audio" or (medium.kind == "video" and job.reading.with_audio):
            audio = job.reading.audio
            total += int(4 * audio.sampling_rate * audio.max_duration_s)
        if medium.kind == "video":
            video = job.reading.video
            total += 3 * min(video.max_frames * video.max_pixels, 2 * video.total_pixels)
        if medium.kind == "image" and medium.url is None:
            total += _image_bytes(medium, job.access)
    return total


def _image_bytes(medium: Media, access: Access) -> int:
    try:
        with open_media(medium, access) as stream:
            header = read_header(stream.read(HEAD))
            size = stream.seek(0, io.SEEK_END)
    except MediaError:  # reported where it is decoded
        return 0
    return 3 * header.width * header.height if header else COMPRESSION * size
