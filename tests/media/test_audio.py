"""Recordings: the hostile files, odd encodings, parts, the sound of videos."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.audios import muxed, tone
from helpers.hard import HARD, hard_rows
from helpers.videos import animation
from vlmrl.config import AudioConfig, VideoConfig
from vlmrl.errors import MediaError
from vlmrl.media.access import Access, Reading
from vlmrl.media.audio import MIN_SECONDS, load_audio, load_video_audio
from vlmrl.media.decode import decode
from vlmrl.schema import Media, Sample, Truth
from vlmrl.schema.media import Audio, Video

RATE = AudioConfig().sampling_rate


@pytest.mark.parametrize("row", hard_rows("audio"), ids=lambda row: row["file"])
def test_hard_recording_is_decoded_right_or_refused_by_name(row: dict[str, Any]) -> None:
    medium = Media("audio", path=str(HARD / row["file"]))
    try:
        recording = load_audio(medium, Access(root=str(HARD)))
    except MediaError as error:
        assert row["expect"] != "decode", str(error)
        assert row["file"] in str(error)
        assert "\n" not in str(error)
        return
    assert row["expect"] != "refuse"
    assert recording.samples.dtype == np.float32 and recording.samples.ndim == 1
    assert np.isfinite(recording.samples).all() and np.abs(recording.samples).max() <= 1
    stated = row.get("duration", row.get("samples", 0) / row.get("sample_rate", 1))
    if stated > MIN_SECONDS:
        near = 0.1 if row["file"].endswith("mp3") else 0.001
        assert recording.duration == pytest.approx(stated, abs=near)


# ------------------------------------------------------------------------------- making recordings


def written(samples: np.ndarray, rate: int = RATE, **options: Any) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, **{"format": "WAV", **options})
    return buffer.getvalue()


def heard(data: bytes, start: float | None = None, end: float | None = None, **config: Any):
    return load_audio(Media("audio", data=data, start=start, end=end), None, AudioConfig(**config))


# ------------------------------------------------------------------------------------- reading


def test_channels_are_averaged_and_loudness_is_kept() -> None:
    left, right = tone(440, 0.5), np.zeros(RATE // 2, "f4")
    recording = heard(written(np.stack([left, right], 1), subtype="FLOAT"))
    np.testing.assert_allclose(recording.samples, left / 2, atol=1e-7)
    six = np.stack([tone(100 * k, 0.5, 48000) for k in range(1, 7)], 1)
    recording = heard(written(six, 48000, subtype="FLOAT"), sampling_rate=48000)
    np.testing.assert_allclose(recording.samples, six.mean(1), atol=1e-6)


@pytest.mark.parametrize("rate", [8000, 11025, 44100, 48000])
def test_resampling_gives_the_tone_at_the_new_rate(rate: int) -> None:
    recording = heard(written(tone(440, 1, rate), rate, subtype="FLOAT"))
    assert recording.rate == RATE and len(recording.samples) == RATE
    middle = slice(RATE // 10, -RATE // 10)
    np.testing.assert_allclose(recording.samples[middle], tone(440, 1)[middle], atol=1e-3)


@pytest.mark.parametrize(
    ("options", "near"),
    [
        ({"subtype": "PCM_U8"}, 1 / 127),
        ({"subtype": "PCM_16"}, 1e-4),
        ({"subtype": "PCM_24"}, 1e-6),
        ({"subtype": "ULAW"}, 0.01),
        ({"subtype": "DOUBLE"}, 1e-7),
        ({"format": "FLAC", "subtype": "PCM_24"}, 1e-6),
        ({"format": "OGG", "subtype": "VORBIS"}, 0.05),
        ({"format": "MP3"}, 0.05),
        ({"format": "AIFF"}, 1e-4),
    ],
    ids=str,
)
def test_encodings_give_the_same_sound(options: dict[str, str], near: float) -> None:
    recording = heard(written(tone(440, 1), **options))
    assert len(recording.samples) == RATE
    middle = slice(RATE // 10, -RATE // 10)
    np.testing.assert_allclose(recording.samples[middle], tone(440, 1)[middle], atol=near)


@pytest.mark.parametrize(("container", "codec"), [("mp4", "aac"), ("webm", "libopus")])
def test_containers_that_libsndfile_refuses_are_read_by_ffmpeg(container: str, codec: str) -> None:
    recording = heard(muxed(container, codec, tone(440, 1, 48000), 48000))
    assert recording.duration == pytest.approx(1, abs=0.05)
    loudest = np.abs(np.fft.rfft(recording.samples)).argmax() / recording.duration
    assert loudest == pytest.approx(440, abs=2)


def test_a_wav_from_a_pipe_has_no_sizes_and_is_read_whole() -> None:
    data = bytearray(written(tone(440, 1)))
    at = data.index(b"data")
    data[4:8] = data[at + 4 : at + 8] = struct.pack("<I", 0xFFFFFFFF)
    np.testing.assert_allclose(heard(bytes(data)).samples, tone(440, 1), atol=1e-4)


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG", "MP3"])
def test_a_part_is_that_part(kind: str) -> None:
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, 4 * RATE).astype("f4")
    data = written(noise, format=kind)
    whole = heard(data).samples
    for start in (0.5, 1.1, 2.5):
        part = heard(data, start, start + 0.75).samples
        first = round(start * RATE)
        np.testing.assert_allclose(part, whole[first : first + RATE * 3 // 4], atol=1e-4)
    assert len(heard(data, 3.5, 9).samples) == RATE // 2  # ends where the recording does


def test_a_part_of_a_container_is_that_part() -> None:
    data = muxed("mp4", "aac", np.concatenate([tone(300, 1, 48000), tone(900, 1, 48000)]), 48000)
    part = heard(data, 1.25, 1.75)
    assert part.duration == pytest.approx(0.5, abs=0.001)
    assert np.abs(np.fft.rfft(part.samples)).argmax() / 0.5 == pytest.approx(900, abs=4)


def test_a_moment_is_filled_up_with_silence_and_silence_stays_silent() -> None:
    samples = heard(written(np.array([0.25], "f4"))).samples
    assert len(samples) == MIN_SECONDS * RATE and samples[0] == 0.25 and not samples[1:].any()
    assert not heard(written(np.zeros(RATE, "f4"))).samples.any()


# ------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_samples_that_are_no_numbers_are_refused(bad: float) -> None:
    samples = tone(440, 1)
    samples[RATE // 2] = bad
    with pytest.raises(MediaError, match="not finite numbers"):
        heard(written(samples, subtype="FLOAT"))


def test_samples_far_beyond_full_scale_are_refused() -> None:
    wave = np.sin(np.arange(8000) / 20)
    with pytest.raises(MediaError, match=r"samples of up to .*full scale is 1"):
        heard(written(-1e30 * wave, subtype="DOUBLE"))
    assert heard(written(32767 * wave, subtype="FLOAT")).samples.max() > 32000  # PCM as floats


def test_too_long_is_refused_whether_the_header_knows_it_or_not() -> None:
    for data in (written(tone(440, 3)), muxed("mp4", "aac", tone(440, 3), RATE)):
        with pytest.raises(MediaError, match=r"3\.0\d s .*max_duration_s \(2 s\)"):
            heard(data, max_duration_s=2)
        assert heard(data, 0.5, 2, max_duration_s=2).duration == pytest.approx(1.5, abs=0.01)
    with pytest.raises(MediaError, match="more than 2 s"):
        heard(muxed("webm", "libopus", tone(440, 3, 48000), 48000), max_duration_s=2)


@pytest.mark.parametrize(
    ("options", "share"), [({}, 0.9), ({}, 0.3), ({"format": "FLAC"}, 0.5)], ids=str
)
def test_a_recording_that_is_cut_off_is_refused(options: dict[str, str], share: float) -> None:
    data = written(tone(440, 2), **options)
    with pytest.raises(MediaError, match=r"cut off|damaged"):
        heard(data[: int(len(data) * share)])


def test_a_part_outside_of_the_recording_is_refused() -> None:
    for data in (written(tone(440, 1)), muxed("mp4", "aac", tone(440, 1), RATE)):
        with pytest.raises(MediaError, match="ends at 1 s, before the part from 2 s"):
            heard(data, 2, 3)
    with pytest.raises(MediaError, match="got 1 s to 1 s"):
        heard(written(tone(440, 2)), 1, 1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"RIFF",
        b"<html>404</html>",
        b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nhttp://localhost/a.ts\n#EXT-X-ENDLIST\n",
        b"ffconcat version 1.0\nfile secret.wav\n",
        written(np.zeros(0, "f4")),
        written(np.zeros(9, "f4"), 300),
    ],
    ids=["nothing", "riff", "html", "playlist", "concat", "no samples", "rate"],
)
def test_what_is_no_recording_is_refused(data: bytes) -> None:
    with pytest.raises(MediaError, match="<audio bytes>: "):
        heard(data)


@settings(max_examples=60)
@given(
    st.sampled_from(["WAV", "FLAC", "OGG", "MP3", "mp4"]),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=12),
    st.floats(0.05, 1),
)
def test_damaged_bytes_give_a_recording_or_a_media_error(
    kind: str, flips: list[tuple[float, int]], share: float
) -> None:
    samples = tone(440, 0.3)
    good = muxed("mp4", "aac", samples, RATE) if kind == "mp4" else written(samples, format=kind)
    data = bytearray(good)
    for place, value in flips:
        data[int(place * len(data))] = value
    try:
        assert np.isfinite(heard(bytes(data[: int(len(data) * share)])).samples).all()
    except MediaError:
        pass


# ------------------------------------------------------------------------------------ videos, samples


@pytest.mark.parametrize("video_from", [0.0, 0.5])
def test_the_sound_of_a_clip_counts_from_its_first_picture(video_from: float) -> None:
    samples = np.concatenate([tone(300, 0.5, 48000), tone(900, 1, 48000)])
    medium = Media("video", data=muxed("mp4", "aac", samples, 48000, video_from))
    sound = load_video_audio(medium)
    assert sound is not None
    assert sound.duration == pytest.approx(1.5 - video_from, abs=0.03)
    first = np.abs(np.fft.rfft(sound.samples[800:7200])).argmax() / 0.4
    assert first == pytest.approx(300 if video_from == 0 else 900, abs=4)


def test_a_clip_without_sound_has_none() -> None:
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as out:
        images = out.add_stream("libx264", rate=10, width=32, height=32, pix_fmt="yuv420p")
        out.mux(images.encode(av.VideoFrame(32, 32, "yuv420p")))
        out.mux(images.encode())
    assert load_video_audio(Media("video", data=buffer.getvalue())) is None
    with pytest.raises(MediaError, match="no audio track"):
        heard(buffer.getvalue())


def shown_with_audio(data: bytes, **part: float) -> Video:
    """A video of ten frames a second, decoded as a run that hears videos does."""
    sample = Sample("s", "t", (Media("video", data=data, **part),), Truth())
    (made,) = decode(sample, Access(), Reading(VideoConfig(fps=10), with_audio=True))
    assert isinstance(made, Video)
    return made


def pitch(sound: Audio, start: float, end: float) -> float:
    part = sound.samples[round(start * sound.rate) : round(end * sound.rate)]
    return float(np.abs(np.fft.rfft(part)).argmax() / (end - start))


@pytest.mark.parametrize("container", ["mp4", "matroska"])
@pytest.mark.parametrize("video_from", [0.0, 0.5])
def test_picture_and_sound_of_a_clip_count_from_the_same_moment(
    container: str, video_from: float
) -> None:
    samples = np.concatenate([tone(300, 0.5, 48000), tone(900, 1.5, 48000)])
    data = muxed(container, "aac", samples, 48000, video_from)
    whole = shown_with_audio(data)
    part = shown_with_audio(data, start=0.3, end=0.8)
    late = shown_with_audio(data, start=0.8, end=9.0)
    assert whole.audio and part.audio and late.audio
    assert whole.duration == pytest.approx(1, abs=0.02)
    for made in (whole, part, late):
        assert made.audio is not None
        assert made.audio.duration == pytest.approx(made.duration, abs=0.002)
    # as the file has it: 300 Hz until half a second, whenever the images begin
    for made, since in ((whole, 0.0), (part, 0.3)):
        assert made.audio is not None
        turn = max(0.0, 0.5 - video_from - since)
        if turn > 0.1:
            assert pitch(made.audio, 0, turn - 0.05) == pytest.approx(300, abs=20)
        assert pitch(made.audio, turn + 0.05, turn + 0.25) == pytest.approx(900, abs=20)
    assert len(part.frames) == pytest.approx(5, abs=1) and part.times[0] <= 0.1


@pytest.mark.parametrize("container", ["mp4", "matroska"])
def test_sound_may_end_before_the_pictures(container: str) -> None:
    data = muxed(container, "aac", tone(300, 0.5, 48000), 48000, 0.0)
    whole = shown_with_audio(data)
    assert whole.audio is not None
    assert whole.audio.duration == pytest.approx(0.5, abs=0.05) and whole.duration > 0.9
    assert shown_with_audio(data, start=0.8).audio is None
    assert shown_with_audio(data, end=0.4).audio is not None


def test_clips_without_a_track_and_animations_have_no_sound() -> None:
    assert shown_with_audio(animation([100] * 6)).audio is None
    silent = Media("video", data=muxed("mp4", "aac", tone(300, 1, 48000), 48000, 0.0))
    (made,) = decode(Sample("s", "t", (silent,), Truth()), Access(), Reading())
    assert isinstance(made, Video) and made.audio is None  # nobody listens


def test_sound_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    data = muxed("mp4", "aac", tone(300, 1, 48000), 48000, 0.0)
    spoiled = bytearray(data)
    with av.open(io.BytesIO(data)) as container:
        for packet in container.demux(audio=0):
            if packet.size:
                spoiled[packet.pos : packet.pos + packet.size] = b"\xff" * packet.size
    file = tmp_path / "spoiled.mp4"
    file.write_bytes(spoiled)
    sample = Sample("s", "t", (Media("video", path=str(file)),), Truth())
    read = Access(str(tmp_path))
    assert len(decode(sample, read)) == 1
    with pytest.raises(MediaError, match=r"spoiled\.mp4"):
        decode(sample, read, Reading(with_audio=True))
    long = Reading(audio=AudioConfig(max_duration_s=0.5), with_audio=True)
    with pytest.raises(
        MediaError, match=r"max_duration_s.*data\.video\.audio: false leaves it out"
    ):
        decode(Sample("s", "t", (Media("video", data=data),), Truth()), Access(), long)


def test_a_sample_with_recordings_is_decoded_as_the_config_says() -> None:
    data = written(tone(440, 1))
    parts = ("Listen:", Media("audio", data=data), Media("audio", data=data, start=0.5))
    reading = Reading(audio=AudioConfig(sampling_rate=8000))
    first, second = decode(Sample("s", "t", parts, Truth()), Access(), reading)
    assert isinstance(first, Audio) and isinstance(second, Audio)
    assert (first.duration, second.duration, first.rate) == (1.0, 0.5, 8000)


# -------------------------------------------------------------------------------------- damaged MP3


def mp3(channels: int = 2, rate: int = 44100) -> bytes:
    samples = np.stack([tone(440, 1.0, rate)] * channels, 1)
    return written(samples, rate, format="MP3")


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("rate", [11025, 22050, 44100])
def test_an_mp3_is_heard_whatever_tags_surround_it(channels: int, rate: int) -> None:
    data = mp3(channels, rate)
    whole = heard(data).samples
    tagged = b"ID3\x04\0\0\0\0\0\x05title" + data + b"TAG" + bytes(125)
    assert np.array_equal(heard(tagged).samples, whole)
    assert np.array_equal(heard(data + bytes(300)).samples, whole)


def test_an_mp3_that_is_cut_or_lacks_a_part_is_refused_and_the_part_before_it_is_heard() -> None:
    data = mp3()
    half, last = len(data) // 2, len(data) * 9 // 10
    for damaged in (data[:half], data[:half] + data[last:], data[:last] + bytes(len(data) - last)):
        with pytest.raises(MediaError, match=r"is cut off|damaged audio"):
            heard(damaged)
        assert np.array_equal(heard(damaged, 0.0, 0.2).samples, heard(data, 0.0, 0.2).samples)
