"""Audio: any common file to mono float32 at one rate, or a MediaError that names it and says why.

Channels are averaged, loudness is left as it is (quiet audio stays quiet, silence stays silence).
Refused is what a plain reader silently returns: no samples, NaN, a file with less in it than its header
promises, damaged MP3 frames, audio longer than allowed. libsndfile reads WAV, FLAC, Ogg and MP3; FFmpeg
the rest (MP4, WebM, AAC) and the audio of videos.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

import av
import numpy as np

from vlmrl.config import AudioConfig
from vlmrl.errors import MediaError
from vlmrl.media.access import Access, open_media
from vlmrl.schema import Media
from vlmrl.schema.media import Audio

if TYPE_CHECKING:
    from soundfile import SoundFile


MIN_SECONDS = 0.1
"""Shorter audio is padded with silence: towers make no token of less."""
RATES = (1000, 768000)
MAX_CHANNELS = 64
MAX_PEAK = 2.0**31
"""Largest sample that is read: full scale of whole numbers in 32 bits that were stored as floats."""
PREROLL_SECONDS = 1
"""Decoded and dropped before a part: an MP3 frame right after a jump lacks what it builds on."""
BLOCK = 65536
"""Samples read at a time."""
MAX_CHUNKS = 1000
"""Chunks of a WAV file before its samples; a file of millions only costs time."""

# Demuxers of plain files: others of FFmpeg's (playlists) open further files and addresses.
CONTAINERS = "mov,mp4,m4a,3gp,matroska,webm,mp3,aac,ogg,flac,wav,aiff,avi,mpegts,mpeg,flv,asf,amr"
_UNKNOWN_SIZE = 0x7FFFF000
"""Sizes from here on are what programs write that do not know how much will follow."""


def load_audio(
    media: Media, access: Access | None = None, config: AudioConfig | None = None
) -> Audio:
    """Return the audio from `media.start` to `media.end` (seconds), which may be beyond its end.

    Raises:
        MediaError: it cannot be opened (`open_media`), is damaged, empty, too long or no audio, or ends
            before `start`; the message names the file and the reason.
    """
    import soundfile  # with the extra `audio`; `Source.sample` says so if it is missing

    config = config or AudioConfig()
    with open_media(media, access or Access()) as stream:
        _check_wav(stream, media.name)
        try:
            blocks, rate = _open_soundfile(stream, media, config)
        except soundfile.LibsndfileError:
            stream.seek(0, os.SEEK_END)  # forget what is buffered: the descriptor was moved
            stream.seek(0)
            return _decode_by_av(stream, media, config, of_video=False)
        try:
            return _collect(blocks, rate, media, config)
        except soundfile.LibsndfileError as error:
            raise MediaError(f"{media.name}: damaged audio: {error}") from error


def load_video_audio(
    media: Media, access: Access | None = None, config: AudioConfig | None = None
) -> Audio | None:
    """Return the audio of a video from `media.start` to `media.end`, seconds from its first frame.

    None if there is none: no audio track, or one with nothing in this part. Where the track begins
    later than the frames, silence comes first.

    Raises:
        MediaError: as `load_audio`.
    """
    with open_media(media, access or Access()) as stream:
        try:
            return _decode_by_av(stream, media, config or AudioConfig(), of_video=True)
        except _Silent:
            return None


class _Silent(MediaError):
    """There is no audio track, or nothing on it in the wanted part."""


# ----------------------------------------------------------------------------------- libsndfile


def _check_wav(stream: BinaryIO, name: str) -> None:
    """Raise if a file is empty, or a WAV file cut off, which libsndfile reads as whole, or all chunks."""
    try:
        start = stream.read(4)
        if not start:
            raise MediaError(f"{name}: is empty")
        if start != b"RIFF" or stream.read(8)[4:] != b"WAVE":
            return
        for _ in range(MAX_CHUNKS):
            if len(header := stream.read(8)) < 8:
                return
            kind, size = struct.unpack("<4sI", header)
            if kind == b"data":
                at = stream.tell()
                there = stream.seek(0, 2) - at
                if there < size < _UNKNOWN_SIZE:
                    raise MediaError(
                        f"{name}: is cut off: {there} bytes of samples where the header promises {size}"
                    )
                return
            stream.seek(size + size % 2, 1)
        raise MediaError(f"{name}: has more than {MAX_CHUNKS} chunks before its samples")
    finally:
        stream.seek(0)


def _open_soundfile(
    stream: BinaryIO, media: Media, config: AudioConfig
) -> tuple[Iterator[np.ndarray], int]:
    """Return blocks of mono samples from the start of the wanted part on, and their rate."""
    import soundfile

    source: BinaryIO | int = stream
    if not isinstance(stream, io.BytesIO):  # of a file its descriptor: no call here per read
        source = stream.fileno()
        os.lseek(source, 0, os.SEEK_SET)  # `seek` of a buffered stream need not move the file's own
    file = soundfile.SoundFile(source, closefd=False)
    _check_header(media.name, file.samplerate, file.channels)
    known = file.frames < 2**62  # else a stream of unknown length
    first, last = _bounds(media, file.samplerate)
    end = file.frames if last is None else min(last, file.frames)
    if known:
        _check_length(media, first, end, file.frames, file.samplerate, config)
    return _soundfile_blocks(file, media.name, first, end, known), file.samplerate


def _mono(block: np.ndarray) -> np.ndarray:
    """Return the mean [N] over the channels of [N, C], by channel: numpy's is slow on short rows."""
    total = block[:, 0]
    for channel in range(1, block.shape[1]):
        total = total + block[:, channel]
    return total / block.shape[1]


def _soundfile_blocks(
    file: SoundFile, name: str, first: int, end: int, known: bool
) -> Iterator[np.ndarray]:
    at = max(0, first - file.samplerate * PREROLL_SECONDS)
    if at:
        file.seek(at)
    while at < end:
        block = file.read(min(BLOCK, end - at), dtype="float32", always_2d=True)
        if not len(block):
            break
        yield _mono(block[max(0, first - at) :])
        at += len(block)
    if known and at < end:
        raise MediaError(f"{name}: is cut off: {at} samples where the header promises {end}")


# --------------------------------------------------------------------------------------- FFmpeg


def _decode_by_av(stream: BinaryIO, media: Media, config: AudioConfig, of_video: bool) -> Audio:
    """Decode with FFmpeg; if the audio is `of_video`, time counts from the first frame."""
    try:
        with av.open(stream, options={"format_whitelist": CONTAINERS}) as container:
            if not container.streams.audio:
                raise _Silent(f"{media.name}: has no audio track")
            track = container.streams.audio[0]
            if track.codec_context is None:
                raise MediaError(f"{media.name}: its audio has an unknown codec")
            _check_header(media.name, track.rate, track.channels)
            if track.codec_context.name == "flac":  # it has checksums, which FFmpeg passes over
                track.codec_context.options = {"err_detect": "crccheck+explode"}
            zero = container.streams.video[0] if of_video and container.streams.video else track
            origin = _seconds(zero, zero.start_time)
            first, last = _bounds(media, track.rate)
            total = None
            if track.duration is not None:
                length = _seconds(track, track.start_time) - origin
                length += _seconds(track, track.duration)
                total = round(length * track.rate)
                last = total if last is None else min(last, total)
                _check_length(media, first, last, total, track.rate, config)
            blocks = _av_blocks(container, origin, media, (first, last), total is not None)
            return _collect(blocks, track.rate, media, config)
    except (av.FFmpegError, OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise MediaError(f"{media.name}: damaged or no audio: {reason}") from error


def _seconds(track: Any, ticks: int | None) -> float:
    return float((ticks or 0) * (track.time_base or 1))


def _av_blocks(
    container: Any, origin: float, media: Media, part: tuple[int, int | None], promised: bool
) -> Iterator[np.ndarray]:
    """Yield mono samples of a part, counted from `origin`; before the track begins, silence.

    `promised` means that the file says that they are there.
    """
    first, last = part
    track = container.streams.audio[0]
    planes = av.AudioResampler(format="fltp")
    at: int | None = None
    if first:
        seconds = max(0.0, first / track.rate - PREROLL_SECONDS) + origin
        container.seek(int(seconds * 1e6))
    for frame in container.decode(track):
        block = np.concatenate([f.to_ndarray() for f in planes.resample(frame)], 1).mean(0)
        if at is None:
            at = round((_seconds(frame, frame.pts) - origin) * track.rate)
            for start in range(first, at, BLOCK):
                yield np.zeros(min(BLOCK, at - start), np.float32)
        begin, at = max(0, first - at), at + len(block)
        if last is not None and at >= last:
            yield block[begin : max(begin, len(block) - (at - last))]
            return
        yield block[begin:]
    if promised and at is not None and last is not None and at < last - MIN_SECONDS * track.rate:
        seconds = (at / track.rate, last / track.rate)
        raise MediaError(
            "{}: is cut off: ends at {:.2f} s, not {:.2f} s".format(media.name, *seconds)
        )


# ------------------------------------------------------------------------------------ both paths


def _bounds(media: Media, rate: int) -> tuple[int, int | None]:
    """Return the first sample of the wanted part, and the one after its last (None: to the end)."""
    start, end = media.start or 0.0, media.end
    if start < 0 or (end is not None and end <= start):
        raise MediaError(f"{media.name}: expected start < end, got {start:g} s to {end:g} s")
    return round(start * rate), None if end is None else round(end * rate)


def _check_header(name: str, rate: int, channels: int) -> None:
    if not RATES[0] <= rate <= RATES[1]:
        raise MediaError(
            f"{name}: expected {RATES[0]} to {RATES[1]} samples per second, got {rate}"
        )
    if not 1 <= channels <= MAX_CHANNELS:
        raise MediaError(f"{name}: expected 1 to {MAX_CHANNELS} channels, got {channels}")


def _check_length(
    media: Media, first: int, end: int, total: int, rate: int, config: AudioConfig
) -> None:
    if total and first >= total:
        raise _Silent(
            f"{media.name}: ends at {total / rate:g} s, before the part from {media.start:g} s"
        )
    if end - first > config.max_duration_s * rate:
        raise _too_long(media, f"{(end - first) / rate:.2f} s", config)


def _too_long(media: Media, length: str, config: AudioConfig) -> MediaError:
    remedy = "; data.video.audio: false leaves it out" if media.kind == "video" else ""
    return MediaError(
        f"{media.name}: {length} of audio exceed data.audio.max_duration_s ({config.max_duration_s:g} s)"
        f"{remedy}"
    )


def _collect(blocks: Iterator[np.ndarray], rate: int, media: Media, config: AudioConfig) -> Audio:
    """Return the blocks as one piece at the wanted rate, at least MIN_SECONDS long."""
    parts: list[np.ndarray] = []
    count = 0
    for block in blocks:
        count += len(block)
        if count > config.max_duration_s * rate + 1:
            raise _too_long(media, f"more than {config.max_duration_s:g} s", config)
        parts.append(block)
    if not count:
        raise _Silent(f"{media.name}: has no samples")
    samples = np.concatenate(parts) if len(parts) > 1 else parts[0]
    if not np.isfinite(samples).all():
        raise MediaError(f"{media.name}: has samples that are not finite numbers (NaN or Inf)")
    if (peak := max(float(samples.max()), -float(samples.min()))) > MAX_PEAK:
        raise MediaError(
            f"{media.name}: has samples of up to {peak:.3g}; full scale is 1, expected at most {MAX_PEAK:g}"
        )
    if rate != config.sampling_rate:
        import soxr  # with the extra `audio`

        samples = soxr.resample(samples, rate, config.sampling_rate)
    missing = int(MIN_SECONDS * config.sampling_rate) - len(samples)
    if missing > 0:
        samples = np.pad(samples, (0, missing))
    return Audio(np.ascontiguousarray(samples, np.float32), config.sampling_rate)
