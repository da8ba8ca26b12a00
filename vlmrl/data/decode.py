"""A sample's media, decoded: in line, or ahead of use in processes, in the samples' order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import TimeoutError as Expired
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pebble import ProcessExpired

from vlmrl.data.audio import load_audio
from vlmrl.data.image import image_size, load_image
from vlmrl.data.media import Access, Reading
from vlmrl.decoded import Decoded, Picture
from vlmrl.errors import MediaError, UserError
from vlmrl.pool import DeadlinePool
from vlmrl.schema import Media, Sample

DEADLINE = 120.0
"""Seconds one sample's media may take in a worker before it counts as bad."""

T = TypeVar("T")
Outcome = list[Decoded] | UserError
"""A sample's media in prompt order, or why there are none."""


def decode(sample: Sample, access: Access, reading: Reading | None = None) -> list[Decoded]:
    """The sample's media in prompt order: RGB pictures, clips, recordings.

    A card that converted pixels by a stated size leaves it in `meta["size"]`: it must be the first
    picture's, or every box would be silently wrong (a picture that was scaled, or turned by EXIF).

    Raises:
        MediaError: one cannot be read, or has not the stated size; the message names it.
        UserError: a medium of a kind that is not read yet.
    """
    decoded = [_load(medium, access, reading or Reading()) for medium in sample.media]
    stated, first = sample.meta.get("size"), decoded[0] if decoded else None
    if stated is not None and isinstance(first, Picture) and first.size != tuple(stated):
        (width, height), real = stated, first.size
        raise MediaError(
            f"{sample.media[0].name}: the row says {width}x{height} pixels, upright it has "
            f"{real[0]}x{real[1]}"
        )
    return decoded


def _load(medium: Media, access: Access, reading: Reading) -> Decoded:
    if medium.kind == "image":
        return load_image(medium, access)
    if medium.kind == "audio":
        return load_audio(medium, access, reading.audio)
    raise UserError(
        f"{medium.name}: {medium.kind} is not supported yet, only images and recordings"
    )


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

    With a pool, up to `ahead` jobs and about `max_bytes` of decoded pictures are under way or
    waiting; at least one always is. Without a pool each is decoded when it is asked for.
    """
    if pool is None:
        for job in jobs:
            yield job, _decode_or_error(job.sample, job.access, job.reading)
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
    return pool.submit(_decode_or_error, job.sample, job.access, job.reading, deadline=DEADLINE)


def _outcome(job: Job[Any], future: Any) -> Outcome | None:
    if future is None:
        return _decode_or_error(job.sample, job.access, job.reading)
    assert isinstance(job.sample, Sample)
    names = ", ".join(medium.name for medium in job.sample.media)
    try:
        outcome: Outcome = future.result()
    except Expired:
        return MediaError(f"{names}: not decoded within {DEADLINE:g} s")
    except ProcessExpired as error:
        return MediaError(f"{names}: the decoding process died (exit code {error.exitcode})")
    return outcome


def _decode_or_error(
    sample: Sample | UserError | None, access: Access, reading: Reading
) -> Outcome | None:
    # Errors travel as values: a worker's exception would come back without its type.
    if not isinstance(sample, Sample):
        return sample
    try:
        return decode(sample, access, reading)
    except UserError as error:
        return error


def _decoded_bytes(job: Job[Any]) -> int:
    """Bytes of the decoded media: pictures by their headers, recordings at their longest.

    What has no header at hand counts as nothing.
    """
    if not isinstance(job.sample, Sample):
        return 0
    total = 0
    for medium in job.sample.media:
        if medium.kind == "audio":
            total += int(4 * job.reading.audio.rate * job.reading.audio.max_seconds)
        if medium.kind != "image" or medium.url is not None:
            continue
        try:
            width, height = image_size(medium, job.access)
        except MediaError:
            continue
        total += 3 * width * height
    return total
