"""Videos: upright RGB frames with their times in seconds, or a MediaError that names the file.

Time zero is the first frame, whatever stamp the container gives it. To be called in a process that
may be killed (`decode.py`).
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from PIL import Image, ImageSequence

from vlmrl.config import AudioConfig, VideoConfig
from vlmrl.errors import MediaError
from vlmrl.media.access import Access, locate, open_media
from vlmrl.media.audio import CONTAINERS, load_video_audio
from vlmrl.media.frame_sampling import Timeline, choose, fit
from vlmrl.media.image import DAMAGE, MAX_PIXELS, load_image, open_image, refusal, to_rgb
from vlmrl.schema import Media
from vlmrl.schema.media import Video

# --------------------------------------------------------------------------------------------------
# Readers of videos: when the frames of a file are shown, and the frames themselves.
#
# decord reads what it can, PyAV what decord refuses, Pillow animated images and lists of frames. Easily
# got wrong and right here: rotation, time stamps, damage that decoders conceal without an error, and
# playlists that would make a decoder open other files.


CHUNK_BYTES = 32 * 2**20
"""About this many bytes of full-size frames are held at a time."""
MIN_SECONDS = 1e-3
"""A frame is shown for at least this time, whatever an animation claims."""

# How containers begin (offset, bytes). Others are refused unread: a playlist names other files.
_BEGINNINGS = (
    *((4, box) for box in (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"styp", b"pnot")),
    (0, b"\x1aE\xdf\xa3"),  # Matroska, WebM
    (8, b"AVI "),
    (0, b"OggS"),
    (0, b"FLV"),
    (0, b"\x00\x00\x01\xba"),  # MPEG program stream
    (0, b"\x00\x00\x01\xb3"),
    (0, b"G"),  # MPEG transport stream
    (4, b"G"),
    (0, b"0&\xb2u\x8ef\xcf\x11"),  # ASF, WMV
)
_ANIMATIONS = ((0, b"GIF8"), (8, b"WEBP"), (0, b"\x89PNG"))
# What FFmpeg writes to standard error where it conceals damage.
_CONCEALED = (b"error while decoding", b"oncealing", b"orrupt", b"Invalid NAL", b"invalid data")
# What it writes there where a part of a Matroska file is lost, with the frames in it.
_LOST = (b"Read error at pos", b"Invalid length")


class Reader(Protocol):
    """An open video: when its frames are shown, their upright (width, height), and the frames."""

    line: Timeline
    size: tuple[int, int]
    has_no_audio: bool
    """Whether files of this kind never have audio."""

    def frames(self, indices: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the frames [H, W, 3] uint8 of these increasing indices."""
        ...


def open_reader(media: Media, access: Access, max_frames: int) -> Reader:
    """Open a video by what its first bytes are; one that must be scanned has at most `max_frames`.

    Raises:
        MediaError: it is damaged, empty, too long, or no video.
    """
    if media.frames is not None:
        return _FrameList(media, access)
    path = locate(media, access)
    source: str | io.BytesIO
    if path is None:
        with open_media(media, access) as stream:
            source = io.BytesIO(stream.read())
        head = source.getvalue()[:16]
    else:
        source = str(path)
        with path.open("rb") as file:
            head = file.read(16)
    if _begins(head, _ANIMATIONS):
        return _Animation(media, access, max_frames)
    if not head:
        raise MediaError("the file is empty")
    if not _begins(head, _BEGINNINGS):
        raise MediaError(f"not a video we read; it begins with {head!r}")
    try:
        return _Decord(source)
    except _refusals():
        return _PyAv(source, max_frames)


def _begins(head: bytes, known: Sequence[tuple[int, bytes]]) -> bool:
    return any(head[at : at + len(mark)] == mark for at, mark in known)


# ------------------------------------------------------------------------------- decord and PyAV


def check_count(count: int, max_frames: int) -> None:
    """Raise MediaError if a file has more frames than allowed."""
    if count > max_frames:
        raise MediaError(f"more than data.video.max_source_frames ({max_frames}) frames")


def _refusals() -> tuple[type[Exception], ...]:
    try:
        from decord import DECORDError
    except ImportError:  # no wheels for this machine
        return (ImportError,)
    return (DECORDError, RuntimeError, ImportError)


class _Decord:
    has_no_audio = False

    def __init__(self, source: str | io.BytesIO) -> None:
        import decord

        decord.logging.set_level(decord.logging.ERROR)
        self._source = source
        if isinstance(source, io.BytesIO):
            source.seek(0)
        # Damage of a frame is reported when the frame is taken.
        with _concealed_damage(_LOST) as lost:
            self._video = decord.VideoReader(source, num_threads=1)
            count = len(self._video)
            if count == 0:
                raise RuntimeError("no frames")
            stamps = self._video.get_frame_timestamp(range(count)).astype(np.float64).round(6)
        if lost:
            raise MediaError(f"damaged: {lost[0]}")
        with _concealed_damage() as self._damage:
            self._first = self._video[0].asnumpy()
        if self._first.shape[2] != 3:  # of some narrow videos it returns its padding as channels
            raise RuntimeError(f"{self._first.shape[2]} channels")
        stamps -= stamps[0, 0]
        if not _increasing(stamps[:, 0]):
            raise RuntimeError("time stamps do not increase")
        self.line = Timeline(stamps[:, 0], float(stamps[-1, 1]), float(self._video.get_avg_fps()))
        self.size = self._first.shape[1::-1]

    def frames(self, indices: np.ndarray) -> Iterator[np.ndarray]:
        step = max(1, CHUNK_BYTES // (3 * self.size[0] * self.size[1]))
        begin = int(indices[0] == 0)
        if begin:  # it is decoded already, and decord need not go back
            if self._damage:
                raise MediaError(f"damaged: {self._damage[0]}")
            yield self._first
        for at in range(begin, len(indices), step):
            part = indices[at : at + step]
            try:
                with _concealed_damage() as damage:
                    frames = self._video.get_batch(part.tolist()).asnumpy()
            except _refusals():
                yield from _PyAv(self._source, len(self.line.stamps)).frames(indices[at:])
                return
            if damage:
                raise MediaError(f"damaged: {damage[0]}")
            yield from frames


class _PyAv:
    """Frames by PyAV, from the first on: slower, but it reads what decord does not."""

    has_no_audio = False

    def __init__(self, source: str | io.BytesIO, max_frames: int) -> None:
        self._source = source
        stamps: list[float] = []
        end, rate, last = 0.0, 0.0, None
        for frame, stream in self._decoded():
            stamps.append(float(frame.pts * frame.time_base))
            check_count(len(stamps), max_frames)
            end = stamps[-1] + float((frame.duration or 0) * frame.time_base)
            rate, last = float(stream.average_rate or 0), frame
        if last is None:
            raise MediaError("it has no frames")
        times = np.array(stamps) - stamps[0]
        if not _increasing(times):
            raise MediaError("its time stamps do not increase")
        step = float(np.median(np.diff(times))) if len(times) > 1 else 1 / (rate or 1.0)
        end = max(end - stamps[0], 0.0)
        self.line = Timeline(times, end if end > times[-1] else times[-1] + step, rate)
        self.size = _upright(last).shape[1::-1]

    def frames(self, indices: np.ndarray) -> Iterator[np.ndarray]:
        wanted = set(indices.tolist())
        for number, (frame, _) in enumerate(self._decoded()):
            if number in wanted:
                yield _upright(frame)

    def _decoded(self) -> Iterator[tuple[Any, Any]]:
        import av

        if isinstance(self._source, io.BytesIO):
            self._source.seek(0)
        shown = 0
        try:
            with av.open(self._source, "r", options={"format_whitelist": CONTAINERS}) as container:
                if not container.streams.video:
                    raise MediaError("it has no video stream")
                stream = container.streams.video[0]
                for frame in container.decode(stream):
                    if frame.is_corrupt:
                        raise MediaError(f"damaged after {shown} frames")
                    if frame.pts is None:
                        raise MediaError(f"frame {shown} has no time stamp")
                    yield frame, stream
                    shown += 1
        except (av.error.FFmpegError, ValueError) as error:
            after = f" after {shown} frames" if shown else ""
            text = getattr(error, "strerror", None) or str(error)
            raise MediaError(f"damaged or no video{after}: {text}") from error


def _upright(frame: Any) -> np.ndarray:
    """Return the pixels [H, W, 3] uint8, turned as the display matrix says."""
    turns = round(frame.rotation / 90) % 4  # counter-clockwise, like numpy's
    return np.ascontiguousarray(np.rot90(frame.to_ndarray(format="rgb24"), turns))


def _increasing(stamps: np.ndarray) -> bool:
    return bool(np.all(np.isfinite(stamps)) and np.all(np.diff(stamps) > 0))


@contextmanager
def _concealed_damage(marks: Sequence[bytes] = _CONCEALED) -> Iterator[list[str]]:
    """Collect what FFmpeg, inside decord, only writes to standard error: there is no other sign."""
    damage: list[str] = []
    with tempfile.TemporaryFile() as log:
        kept = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            yield damage
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            log.seek(0)
            lines = log.read(2**16).splitlines()
            damage += [
                line.decode(errors="replace") for line in lines if any(m in line for m in marks)
            ]


# ------------------------------------------------------------------------------- Pillow


class _Animation:
    """Frames of an animated GIF, WebP or PNG; transparent parts show white, as in an image."""

    has_no_audio = True

    def __init__(self, media: Media, access: Access, max_frames: int) -> None:
        self._media, self._access = media, access
        starts, now = [], 0.0
        for image in self._images():
            starts.append(now)
            check_count(len(starts), max_frames)
            now += max(image.info.get("duration", 0) / 1000, MIN_SECONDS)
            self.size = image.size
        self.line = Timeline(np.array(starts), now)

    def frames(self, indices: np.ndarray) -> Iterator[np.ndarray]:
        wanted = set(indices.tolist())
        for number, image in enumerate(self._images()):
            if number in wanted:
                yield np.asarray(to_rgb(image))

    def _images(self) -> Iterator[Image.Image]:
        with open_media(self._media, self._access) as stream:
            try:
                animation = open_image(stream, self._media.name)
                for frame in ImageSequence.Iterator(animation):
                    frame.load()
                    yield frame
            except DAMAGE as error:
                raise refusal(self._media.name, error) from error


class _FrameList:
    """Frames in image files, one after another, `media.fps` a second."""

    has_no_audio = True

    def __init__(self, media: Media, access: Access) -> None:
        assert media.frames is not None
        if not media.frames or not media.fps or media.fps <= 0:
            raise MediaError(f"{len(media.frames)} frames at {media.fps} a second are no video")
        self._frames, self._access = media.frames, access
        count = len(media.frames)
        self.line = Timeline(np.arange(count) / media.fps, count / media.fps, media.fps)
        self.size = load_image(Media("image", path=media.frames[0]), access).size

    def frames(self, indices: np.ndarray) -> Iterator[np.ndarray]:
        for index in indices.tolist():
            name = self._frames[index]
            image = load_image(Media("image", path=name), self._access)
            if image.size != self.size:
                raise MediaError(f"{name}: {image.size} pixels, the first frame has {self.size}")
            yield np.asarray(image)


# --------------------------------------------------------------------------------------------------


def load_video(
    media: Media, access: Access, config: VideoConfig, audio: AudioConfig | None = None
) -> Video:
    """Return the frames that `config` asks for, between `media.start` and `media.end`.

    With `audio` also the audio of that time, if there is any.

    Raises:
        MediaError: the file cannot be opened, has no frames or too many, is damaged where frames are
            taken, or has no time between start and end, or its audio cannot be read
            (`load_video_audio`); the message names it.
    """
    try:
        reader = open_reader(media, access, config.max_source_frames)
        check_count(len(reader.line.stamps), config.max_source_frames)
        chosen = choose(reader.line, config, media.start, media.end)
        width, height = reader.size
        if width * height > MAX_PIXELS:
            raise MediaError(
                f"{width}x{height} pixels a frame exceed the limit of {MAX_PIXELS / 1e6:.0f} million"
            )
        size = fit(width, height, len(chosen.indices), config)
        frames = _gather(reader, chosen.indices, size)
    except MediaError as error:
        reason = str(error)
        named = reason if media.name in reason else f"{media.name}: {reason}"
        raise MediaError(named) from error
    line, track = reader.line, None
    if audio is not None and not reader.has_no_audio:
        since = max(0.0, media.start or 0.0)
        part = replace(media, start=since, end=since + chosen.duration)
        track = load_video_audio(part, access, audio)
    return Video(
        frames,
        chosen.times,
        chosen.duration,
        tuple(chosen.indices.tolist()),
        len(line.stamps),
        line.fps,
        reader.size,
        track,
    )


def _gather(reader: Reader, indices: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return the frames [T, H, W, 3] uint8, each shrunk before the next ones are read."""
    width, height = size
    out = np.empty((len(indices), height, width, 3), np.uint8)
    done = 0
    step = max(1, CHUNK_BYTES // (3 * reader.size[0] * reader.size[1]))
    chunk: list[np.ndarray] = []
    for frame in reader.frames(indices):
        chunk.append(frame)
        if len(chunk) == step or done + len(chunk) == len(indices):
            out[done : done + len(chunk)] = _resize(chunk, size)
            done, chunk = done + len(chunk), []
    return out


def _resize(frames: list[np.ndarray], size: tuple[int, int]) -> Any:
    """Return the frames [T, H, W, 3] at this size by antialiased bicubic, in floats as `fetch_video`."""
    if frames[0].shape[1::-1] == size:
        return frames
    import torch

    out = []
    for frame in frames:
        pixels = torch.tensor(frame).permute(2, 0, 1)[None].contiguous().float()
        small = torch.nn.functional.interpolate(pixels, size[::-1], mode="bicubic", antialias=True)
        out.append(small[0].clamp_(0, 255).round_().permute(1, 2, 0).numpy())
    return out
