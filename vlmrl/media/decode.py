"""A sample's media, decoded: in line, or ahead of use in processes, in the samples' order.

Videos and recordings are never decoded in the caller's process: a hostile file can hang a decoder,
crash it, or make it take all memory. They go to a process with a deadline and a ceiling on memory.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as Expired
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import psutil
from pebble import ProcessExpired

from vlmrl.errors import MediaError, UserError
from vlmrl.media.access import Access, DiskError, Reading, check_disk
from vlmrl.media.audio import load_audio
from vlmrl.media.image import image_size, load_image
from vlmrl.media.video import load_video
from vlmrl.media_types import Decoded, PilImage, Video
from vlmrl.schema import Media, Sample
from vlmrl.system.deadline_pool import DeadlinePool

_APART = DeadlinePool(1)
"""Decodes videos and recordings for callers without a pool of their own."""

T = TypeVar("T")
Outcome = list[Decoded] | UserError
"""A sample's media in prompt order, or why there are none."""


def decode(sample: Sample, access: Access, reading: Reading | None = None) -> list[Decoded]:
    """The sample's media in prompt order: RGB images, videos, recordings.

    A card that converted pixels by a stated size leaves it in `meta["size"]`: it must be the first
    image's or video's, or every box would be silently wrong (an image that was scaled, or turned
    by EXIF).

    Raises:
        MediaError: one cannot be read, or has not the stated size; the message names it.
    """
    job = Job(None, sample, access, reading or Reading())
    outcome = _outcome(job, _submit(_APART, job) if _moves(sample) else None)
    if isinstance(outcome, UserError):
        raise outcome
    assert outcome is not None
    return outcome


def _moves(sample: Sample | UserError | None) -> bool:
    """Whether a sample has videos or recordings."""
    return isinstance(sample, Sample) and any(m.kind != "image" for m in sample.media)


def _decoded(sample: Sample, access: Access, reading: Reading) -> list[Decoded]:
    decoded = [_load(medium, access, reading) for medium in sample.media]
    stated, first = sample.meta.get("size"), decoded[0] if decoded else None
    if stated is None or not isinstance(first, PilImage | Video):
        return decoded
    real = first.original if isinstance(first, Video) else first.size
    if real != tuple(stated):
        (width, height), name = stated, sample.media[0].name
        raise MediaError(
            f"{name}: the row says {width}x{height} pixels, upright it has {real[0]}x{real[1]}"
        )
    return decoded


def _load(medium: Media, access: Access, reading: Reading) -> Decoded:
    if medium.kind == "video":
        return load_video(
            medium, access, reading.video, reading.audio if reading.with_audio else None
        )
    if medium.kind == "audio":
        return load_audio(medium, access, reading.audio)
    return load_image(medium, access)


@dataclass(frozen=True, slots=True)
class Job(Generic[T]):
    """Something to decode: `sample` is an error if the row was bad, None if that was known."""

    key: T
    sample: Sample | UserError | None
    access: Access
    reading: Reading = field(default_factory=Reading)


def decode_in_order(
    jobs: Iterable[Job[T]], pool: DeadlinePool | None, ahead: int, max_bytes: int
) -> Iterator[tuple[Job[T], Outcome | None]]:
    """Each job with its media or its error (None for a known bad row), in the jobs' order.

    With a pool, up to `ahead` jobs and about `max_bytes` of decoded images are under way or
    waiting; at least one always is. Without a pool each is decoded when it is asked for.
    """
    if pool is None:
        for job in jobs:
            yield job, _outcome(job, _submit(_APART, job) if _moves(job.sample) else None)
        return
    waiting: deque[tuple[Job[T], Any, int]] = deque()
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
        yield job, _outcome(job, future)


def _submit(pool: DeadlinePool, job: Job[Any]) -> Any:
    if not isinstance(job.sample, Sample) or not job.sample.media:
        return None
    arguments = (job.sample, job.access, job.reading)
    return pool.submit(_decode_bounded, *arguments, deadline=job.reading.seconds)


def _outcome(job: Job[Any], future: Any) -> Outcome | None:
    if future is None:
        return _decode_or_error(job.sample, job.access, job.reading)
    assert isinstance(job.sample, Sample)
    try:
        outcome: Outcome = future.result()
    except Expired:
        return _refusal(job.sample, f"not decoded within {job.reading.seconds:g} s")
    except ProcessExpired as error:
        # A library may abort where an allocation fails, instead of saying so.
        return _refusal(
            job.sample,
            f"the decoding process died (exit code {error.exitcode}); it may not need more than "
            f"{job.reading.memory_mb} MiB",
        )
    except (DiskError, CancelledError):  # not about this row
        raise
    except Exception as error:
        return _refusal(job.sample, f"cannot be decoded: {type(error).__name__}: {error}")
    return outcome


def _decode_bounded(sample: Sample, access: Access, reading: Reading) -> Outcome | None:
    """In a worker: with videos or recordings, allocations beyond the ceiling fail."""
    if not _moves(sample):
        return _decode_or_error(sample, access, reading)
    try:
        with _ceiling(reading.memory_mb * 2**20):
            return _decode_or_error(sample, access, reading)
    except MemoryError:
        return _refusal(sample, f"needs more than {reading.memory_mb} MiB to decode")


@contextmanager
def _ceiling(size: int) -> Iterator[None]:
    """Allocations of more than `size` bytes fail; where the system cannot do that, nothing is done."""
    if sys.platform != "linux":
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    used = psutil.Process().memory_info().data
    resource.setrlimit(resource.RLIMIT_DATA, (used + size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _decode_or_error(
    sample: Sample | UserError | None, access: Access, reading: Reading
) -> Outcome | None:
    """Decode, or return why not; whatever a decoder raises about a row is about that row.

    Errors travel as values: a worker's exception would come back without its type.

    Raises:
        DiskError: no file can be read.
        MemoryError: an allocation failed.
    """
    if not isinstance(sample, Sample):
        return sample
    try:
        return _decoded(sample, access, reading)
    except (DiskError, MemoryError):
        raise
    except Exception as error:
        for medium in sample.media:
            if medium.path is not None:
                check_disk(Path(medium.path))
        if isinstance(error, UserError):
            return error
        return _refusal(sample, f"cannot be decoded: {type(error).__name__}: {error}")


def _refusal(sample: Sample, reason: str) -> MediaError:
    return MediaError(f"{', '.join(medium.name for medium in sample.media)}: {reason}")


def _decoded_bytes(job: Job[Any]) -> int:
    """Bytes of the decoded media: images by their headers, others at their largest.

    What has no header at hand counts as nothing.
    """
    if not isinstance(job.sample, Sample):
        return 0
    total = 0
    for medium in job.sample.media:
        if medium.kind == "audio" or (medium.kind == "video" and job.reading.with_audio):
            total += int(4 * job.reading.audio.sampling_rate * job.reading.audio.max_duration_s)
        if medium.kind == "video":
            video = job.reading.video
            total += 3 * min(video.max_frames * video.max_pixels, 2 * video.total_pixels)
        if medium.kind != "image" or medium.url is not None:
            continue
        try:
            width, height = image_size(medium, job.access)
        except MediaError:
            continue
        total += 3 * width * height
    return total
