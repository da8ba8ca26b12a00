"""A sample's media, decoded: in line, or ahead of use in processes, in the samples' order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import TimeoutError as Expired
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pebble import ProcessExpired
from PIL import Image

from vlmrl.data.image import image_size, load_image
from vlmrl.data.media import Access
from vlmrl.errors import MediaError, UserError
from vlmrl.pool import DeadlinePool
from vlmrl.schema import Sample

DEADLINE = 120.0
"""Seconds one sample's media may take in a worker before it counts as bad."""

T = TypeVar("T")
Decoded = list[Image.Image] | UserError
"""A sample's pictures in prompt order, or why there are none."""


def decode(sample: Sample, access: Access) -> list[Image.Image]:
    """The sample's pictures in prompt order, as RGB.

    A card that converted pixels by a stated size leaves it in `meta["size"]`: it must be the first
    picture's, or every box would be silently wrong (a picture that was scaled, or turned by EXIF).

    Raises:
        MediaError: one cannot be read, or has not the stated size; the message names it.
        UserError: a medium of a kind that is not read yet.
    """
    for medium in sample.media:
        if medium.kind != "image":
            raise UserError(f"{medium.name}: {medium.kind} is not supported yet, only images")
    images = [load_image(medium, access) for medium in sample.media]
    stated = sample.meta.get("size")
    if stated is not None and images and images[0].size != tuple(stated):
        (width, height), real = stated, images[0].size
        raise MediaError(
            f"{sample.media[0].name}: the row says {width}x{height} pixels, upright it has "
            f"{real[0]}x{real[1]}"
        )
    return images


@dataclass(frozen=True, slots=True)
class Job(Generic[T]):
    """Something to decode: `sample` is an error if the row was bad, None if that was known."""

    key: T
    sample: Sample | UserError | None
    access: Access


def decode_in_order(
    jobs: Iterable[Job[T]], pool: DeadlinePool | None, ahead: int, max_bytes: int
) -> Iterator[tuple[Job[T], Decoded | None]]:
    """Each job with its pictures or its error (None for a known bad row), in the jobs' order.

    With a pool, up to `ahead` jobs and about `max_bytes` of decoded pictures are under way or
    waiting; at least one always is. Without a pool each is decoded when it is asked for.
    """
    if pool is None:
        for job in jobs:
            yield job, _decode_or_error(job.sample, job.access)
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
    return pool.submit(_decode_or_error, job.sample, job.access, deadline=DEADLINE)


def _outcome(job: Job[Any], future: Any) -> Decoded | None:
    if future is None:
        return _decode_or_error(job.sample, job.access)
    assert isinstance(job.sample, Sample)
    names = ", ".join(medium.name for medium in job.sample.media)
    try:
        outcome: Decoded = future.result()
    except Expired:
        return MediaError(f"{names}: not decoded within {DEADLINE:g} s")
    except ProcessExpired as error:
        return MediaError(f"{names}: the decoding process died (exit code {error.exitcode})")
    return outcome


def _decode_or_error(sample: Sample | UserError | None, access: Access) -> Decoded | None:
    # Errors travel as values: a worker's exception would come back without its type.
    if not isinstance(sample, Sample):
        return sample
    try:
        return decode(sample, access)
    except UserError as error:
        return error


def _decoded_bytes(job: Job[Any]) -> int:
    """Bytes of the decoded pictures by their headers; what has none at hand counts as nothing."""
    if not isinstance(job.sample, Sample):
        return 0
    total = 0
    for medium in job.sample.media:
        if medium.url is not None:
            continue
        try:
            width, height = image_size(medium, job.access)
        except MediaError:
            continue
        total += 3 * width * height
    return total
