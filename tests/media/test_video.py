"""Videos: the hostile files, real videos against an independent decoder, sampling against its source."""

from __future__ import annotations

import json
import math
import os
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import psutil
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from helpers.example_data import EXAMPLE_DATA
from helpers.hard import HARD, hard_rows
from helpers.videos import animation, numbers, write_video
from vlmrl.config import VideoConfig
from vlmrl.errors import MediaError
from vlmrl.media import decode as decode_module
from vlmrl.media.access import Access, Reading
from vlmrl.media.decode import decode
from vlmrl.media.frame_sampling import Timeline, choose, fit
from vlmrl.media.video import load_video
from vlmrl.schema import Media, Sample, Truth
from vlmrl.schema.media import Video

REAL = EXAMPLE_DATA / "video"
ALL = VideoConfig(fps=1000, max_frames=10000, total_pixels=10**9, max_pixels=10**8)
"""Every frame, as large as it is."""


def sample(media: Media, **meta: Any) -> Sample:
    return Sample("row-1", "t", (media, "What happens?"), Truth(), meta=meta)


def by_pyav(path: Path, wanted: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The wanted frames and the stamps of all, by nothing of ours."""
    kept, stamps = [], []
    with av.open(str(path)) as container:
        container.streams.video[0].thread_type = "AUTO"
        for number, frame in enumerate(container.decode(container.streams.video[0])):
            stamps.append(float(frame.pts * frame.time_base))
            if number in wanted:
                kept.append(frame.to_ndarray(format="rgb24"))
    return np.stack(kept), np.array(stamps) - stamps[0]


# ------------------------------------------------------------------------------------ real files


@pytest.mark.parametrize("row", hard_rows("video"), ids=lambda row: row["file"])
def test_hard_clip_is_decoded_right_or_refused_by_name(row: dict[str, Any]) -> None:
    media = Media("video", path=str(HARD / row["file"]))
    reading = Reading(video=ALL, seconds=60 if row["expect"] == "decode" else 10, memory_mb=1024)
    try:
        (clip,) = decode(sample(media), Access(str(HARD)), reading)
    except MediaError as error:
        assert row["expect"] != "decode", str(error)
        assert row["file"] in str(error)
        assert "\n" not in str(error)
        return
    assert row["expect"] == "decode"
    assert isinstance(clip, Video)
    if "display" in row or "width" in row:
        assert clip.size == tuple(row.get("display") or (row["width"], row["height"]))
    if "frames" in row:
        assert clip.total == row["frames"]
        assert len(clip.frames) == (row["frames"] // 2 * 2 or 1)  # frames come in pairs
    if "duration" in row:
        assert clip.duration == pytest.approx(row["duration"], abs=0.01)
    if "pts_ms" in row:
        assert clip.times == pytest.approx([ms / 1000 for ms in row["pts_ms"]], abs=1e-3)
    if row["file"] == "rotated90.mp4":
        (upright,) = decode(
            sample(Media("video", path=str(HARD / "good.mp4"))), Access(str(HARD)), reading
        )
        assert np.array_equal(clip.frames, np.rot90(upright.frames, -1, axes=(1, 2)))


@pytest.mark.parametrize("width", [2, 6, 8, 12, 16, 20, 24, 48, 72])
def test_narrow_video_equals_an_independent_decode(width: int, tmp_path: Path) -> None:
    path = write_video(tmp_path / "narrow.mp4", [0, 100, 200, 300], size=(width, 48))
    video = load_video(Media("video", path=str(path)), Access(str(tmp_path)), ALL)
    assert np.array_equal(video.frames, by_pyav(path, video.indices)[0])


@pytest.mark.slow
def test_real_clips_equal_an_independent_decode() -> None:
    rows = [json.loads(line) for s in ("train", "test") for line in (REAL / f"{s}.jsonl").open()]
    stated = {path: row for row in rows for path in row["videos"]}
    for name, row in sorted(stated.items()):
        path = REAL / name
        clip = load_video(Media("video", path=str(path)), Access(str(REAL)), VideoConfig(fps=3.0))
        frames, stamps = by_pyav(path, clip.indices)
        assert clip.total == len(stamps) == row["num_frames"], name
        assert clip.times == pytest.approx(stamps[list(clip.indices)], abs=1e-3), name
        assert np.array_equal(clip.frames, frames), name
        assert clip.duration == pytest.approx(row["duration"], abs=0.04), name


@pytest.mark.slow
@pytest.mark.parametrize(
    "video",
    [
        REAL / "clips" / "asl_milk.mkv",
        REAL / "clips" / "cars_0.mp4",
        REAL / "clips" / "bottles_0.mp4",
        HARD / "vp9.webm",
    ],
    ids=lambda video: video.name,
)
def test_frames_and_sizes_are_those_of_qwen_vl_utils(video: Path, monkeypatch: Any) -> None:
    from vlmrl.system import torchvision_shim  # noqa: F401  isort: skip
    from qwen_vl_utils import vision_process

    monkeypatch.setattr(vision_process, "get_video_reader_backend", lambda: "decord")
    path = str(video)
    for fps, most, total in (
        (2.0, 64, 10**8),
        (4.0, 10, 10**8),
        (1.0, 64, 6 * 40000),
        (7.3, 32, 10**6),
    ):
        config = VideoConfig(fps=fps, max_frames=most, total_pixels=total, max_pixels=300000)
        asked = {"video": path, "fps": fps, "min_frames": 4, "max_frames": most}
        asked |= {"total_pixels": total, "max_pixels": 300000, "min_pixels": 28 * 28}
        (theirs, meta), rate = vision_process.fetch_video(
            asked, return_video_sample_fps=True, return_video_metadata=True
        )
        ours = load_video(Media("video", path=path), Access(str(video.parent)), config)
        assert list(ours.indices) == list(meta["frames_indices"])
        assert rate == pytest.approx(len(ours.frames) / ours.total * ours.fps, rel=1e-6)
        if ours.original != ours.size:
            assert ours.size == (theirs.shape[3], theirs.shape[2])
            assert np.array_equal(ours.frames, theirs.permute(0, 2, 3, 1).numpy())


# -------------------------------------------------------------------------------------- sampling


@given(
    total=st.integers(2, 2000),
    rate=st.sampled_from([1.0, 10.0, 12.5, 23.976, 24.0, 25.0, 29.97, 30.0, 59.94]),
    fps=st.floats(0.1, 30),
    most=st.integers(4, 128),
)
@settings(max_examples=200, deadline=None)
def test_the_number_of_frames_is_smart_nframes(
    total: int, rate: float, fps: float, most: int
) -> None:
    from vlmrl.system import torchvision_shim  # noqa: F401  isort: skip
    from qwen_vl_utils.vision_process import smart_nframes

    asked = {"fps": fps, "min_frames": 4, "max_frames": most}
    count = smart_nframes(asked, total, rate) if min(most, total) >= 2 else 1
    line = Timeline(np.arange(total) / rate, total / rate, rate)

    chosen = choose(line, VideoConfig(fps=fps, max_frames=most))

    assert chosen.indices.tolist() == torch.linspace(0, total - 1, count).round().long().tolist()
    assert chosen.times == pytest.approx(chosen.indices / rate)


@given(width=st.integers(1, 4000), height=st.integers(1, 4000), count=st.integers(1, 64))
def test_the_size_of_frames_is_smart_resize(width: int, height: int, count: int) -> None:
    from vlmrl.system import torchvision_shim  # noqa: F401  isort: skip
    from qwen_vl_utils.vision_process import smart_resize

    config = VideoConfig(max_pixels=200000, total_pixels=2000000)
    wide, high = fit(width, height, count, config)
    limit = min(config.max_pixels, config.total_pixels / count * 2)
    if (wide, high) == (width, height):
        assert math.prod(max(28, round(s / 28) * 28) for s in (width, height)) <= limit
    elif max(width, height) <= 200 * min(width, height):
        theirs = smart_resize(height, width, 28, min_pixels=1, max_pixels=limit)
        assert (high, wide) == tuple(max(28, s) for s in theirs)


def test_uneven_clips_are_sampled_by_time() -> None:
    stamps = np.array([0.0, 0.1, 0.2, 0.3, 3.0, 3.1, 7.0, 9.9, 10.0])
    chosen = choose(Timeline(stamps, 10.5), VideoConfig(fps=0.5))
    assert chosen.times == (0.0, 3.1, 7.0, 10.0)  # nearest to 0, 3.3, 6.7, 10
    assert chosen.duration == 10.5


def test_start_and_end_cut_the_clip_and_times_begin_anew(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", [100 * n for n in range(30)])
    read = Access(str(tmp_path))

    cut = load_video(Media("video", path=str(path), start=0.95, end=2.0), read, ALL)
    between = load_video(Media("video", path=str(path), start=0.92, end=0.95), read, ALL)

    assert numbers(cut.frames) == list(cut.indices)
    assert (cut.indices[0], cut.indices[-1], len(cut.indices)) == (10, 20, 10)
    assert cut.times[0] == pytest.approx(0.05)
    assert cut.duration == pytest.approx(1.05)
    assert numbers(between.frames) == [9]  # the one on display
    with pytest.raises(MediaError, match=r"a\.mp4: nothing is between 5 s and 6 s"):
        load_video(Media("video", path=str(path), start=5, end=6), read, ALL)


# ------------------------------------------------------------------------------- own hard files


def test_a_late_start_counts_from_the_first_frame(tmp_path: Path) -> None:
    path = write_video(tmp_path / "late.mp4", [5000 + 100 * n for n in range(20)])
    clip = load_video(Media("video", path=str(path)), Access(str(tmp_path)), ALL)
    assert clip.times == pytest.approx([n / 10 for n in range(20)], abs=1e-3)
    assert numbers(clip.frames) == list(range(20))


@pytest.mark.parametrize("pixels", ["yuv420p10le", "yuv444p"])
def test_deep_and_odd_pixels_are_read(tmp_path: Path, pixels: str) -> None:
    path = write_video(tmp_path / "a.mp4", [100 * n for n in range(12)], pixels=pixels)
    clip = load_video(Media("video", path=str(path)), Access(str(tmp_path)), ALL)
    assert numbers(clip.frames) == list(range(12))
    assert np.abs(clip.frames[3, 4, 4].astype(int) - (220, 20, 20)).max() < 12


def test_what_decord_refuses_is_read_by_pyav(tmp_path: Path, monkeypatch: Any) -> None:
    import decord

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("no")

    path = write_video(tmp_path / "a.mp4", [0, 100, 250, 300, 900, 1000])
    by_decord = load_video(Media("video", path=str(path)), Access(str(tmp_path)), ALL)
    monkeypatch.setattr(decord, "VideoReader", refuse)
    by_av = load_video(Media("video", path=str(path)), Access(str(tmp_path)), ALL)

    assert np.array_equal(by_decord.frames, by_av.frames)
    assert by_decord.times == pytest.approx(by_av.times, abs=1e-3)
    assert by_av.times == pytest.approx([0, 0.1, 0.25, 0.3, 0.9, 1.0])


def test_damage_that_decoders_conceal_is_refused(tmp_path: Path) -> None:
    noise = np.random.default_rng(0)
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 160, 120, "yuv420p"
        for _ in range(30):
            image = noise.integers(0, 255, (120, 160, 3), np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 400] = noise.bytes(400)
    path.write_bytes(data)
    with pytest.raises(MediaError, match=r"a\.mp4: damaged"):
        load_video(Media("video", path=str(path)), Access(str(tmp_path)), ALL)


def test_a_container_without_frames_is_refused(tmp_path: Path) -> None:
    whole = write_video(
        tmp_path / "a.mp4", [0, 100], options={"movflags": "frag_keyframe+empty_moov"}
    )
    data = whole.read_bytes()
    head = tmp_path / "head.mp4"
    head.write_bytes(data[: data.index(b"moof") - 4])
    with pytest.raises(MediaError, match=r"head\.mp4: .*(no frames|no video)"):
        load_video(Media("video", path=str(head)), Access(str(tmp_path)), ALL)


@pytest.mark.parametrize(
    "text", ["#EXTM3U\n#EXTINF:1,\n{}\n", "ffconcat version 1.0\nfile {}\n", "<MPD></MPD>"]
)
def test_a_playlist_opens_no_other_file(tmp_path: Path, text: str) -> None:
    other = write_video(tmp_path / "secret.mp4", [0, 100])
    (tmp_path / "list.mp4").write_text(text.format(other))
    with pytest.raises(MediaError, match=r"list\.mp4: not a video we read"):
        load_video(Media("video", path=str(tmp_path / "list.mp4")), Access(str(tmp_path)), ALL)


@pytest.mark.parametrize("kind", ["GIF", "WEBP"])
def test_animated_pictures_are_clips(kind: str) -> None:
    media = Media("video", data=animation([100] * 7 + [400], kind))
    clip = load_video(media, Access(), ALL)
    assert numbers(clip.frames) == list(range(8))
    assert clip.times == pytest.approx([n / 10 for n in range(8)])
    assert clip.duration == pytest.approx(1.1)


def test_a_list_of_frames_is_a_clip(tmp_path: Path) -> None:
    for n in range(6):
        Image.new("RGB", (40, 30), (10 + 8 * n,) * 3).save(tmp_path / f"{n}.png")
    files = tuple(str(tmp_path / f"{n}.png") for n in range(6))
    clip = load_video(Media("video", frames=files, fps=2.0), Access(str(tmp_path)), ALL)
    assert (numbers(clip.frames), clip.duration) == (list(range(6)), 3.0)

    with pytest.raises(MediaError, match="at None a second"):
        load_video(Media("video", frames=files), Access(str(tmp_path)), ALL)
    with pytest.raises(MediaError, match=r"0\.png.*outside"):
        load_video(Media("video", frames=files, fps=2.0), Access(str(tmp_path / "x")), ALL)
    Image.new("RGB", (41, 30)).save(tmp_path / "5.png")
    with pytest.raises(MediaError, match=r"5\.png"):
        load_video(Media("video", frames=files, fps=2.0), Access(str(tmp_path)), ALL)


# --------------------------------------------------------------------------- the process apart


def hang(*_: Any) -> None:
    time.sleep(60)


def crash(*_: Any) -> None:
    os.abort()


def test_hangs_crashes_and_memory_cost_one_row(tmp_path: Path, monkeypatch: Any) -> None:
    path = write_video(tmp_path / "a.mp4", [100 * n for n in range(80)], size=(640, 480))
    row, read = sample(Media("video", path=str(path))), Access(str(tmp_path))
    with pytest.raises(
        MediaError, match=r"a\.mp4: .*need.* more than data.decode_memory_mb \(64 MiB"
    ):
        decode(row, read, Reading(video=ALL, memory_mb=64))
    for act, told in (
        (hang, r"not decoded within data\.decode_timeout_s \(1 s"),
        (crash, "process died"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(decode_module, "_decode_bounded", act)
            with pytest.raises(MediaError, match=rf"a\.mp4: .*{told}"):
                decode(row, read, Reading(seconds=1.0))
    (clip,) = decode(row, read, Reading())
    assert isinstance(clip, Video)


def test_the_stated_size_must_be_the_real_one(tmp_path: Path) -> None:
    media = Media("video", path=str(write_video(tmp_path / "a.mp4", [0, 100])))
    small = Reading(video=VideoConfig(max_pixels=28 * 28))
    (clip,) = decode(sample(media, size=(64, 48)), Access(str(tmp_path)), small)
    assert (clip.size, clip.original) == ((28, 28), (64, 48))
    with pytest.raises(
        MediaError, match=r"a\.mp4: the row says 48x64 pixels, upright it has 64x48"
    ):
        decode(sample(media, size=(48, 64)), Access(str(tmp_path)), small)


def test_an_even_clip_keeps_the_rate_of_its_container() -> None:
    milliseconds = np.round(np.arange(100) * 1001 / 30) / 1000
    line = Timeline(milliseconds, 3.337, float(Fraction(30000, 1001)))
    assert line.fps == pytest.approx(29.97003)


@pytest.mark.nightly
def test_memory_stays_flat_over_ten_thousand_loads(tmp_path: Path) -> None:
    write_video(tmp_path / "clip.mp4", list(range(0, 1000, 100)))
    soundfile.write(tmp_path / "tone.wav", np.full(8000, 0.1, np.float32), 16000)
    Image.new("RGB", (300, 200)).save(tmp_path / "picture.png")
    names = (("video", "clip.mp4"), ("audio", "tone.wav"), ("image", "picture.png"))
    process, access, sizes = psutil.Process(), Access(str(tmp_path)), []
    for load in range(10_000):
        kind, name = names[load % 3]
        media = Media(kind, path=str(tmp_path / name))  # type: ignore[arg-type]
        decode(Sample("row", "source", (media,), Truth()), access)
        if load in (999, 9999):
            apart = max(child.memory_info().rss for child in process.children(recursive=True))
            sizes.append((process.memory_info().rss, apart))
    for before, after in zip(*sizes, strict=True):
        assert after - before < 24 * 2**20  # 2.7 KiB a load
