"""Tools of time read the file again: frames that the prompt left out, and the sound of a video."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vlmrl.config import AudioConfig, VideoConfig
from vlmrl.interaction.tool import Refused, Shown, View
from vlmrl.media.access import Access
from vlmrl.media.audio import load_audio
from vlmrl.media.video import load_video
from vlmrl.parts.tools.frames import Frames
from vlmrl.parts.tools.listen import Listen
from vlmrl.schema import Frame, Media
from vlmrl.schema.media import Audio

ROOT = Path(__file__).parents[2]
VIDEO = ROOT / "examples/data/video/clips/cars_0.mp4"
ACCESS = Access(root=str(ROOT))


def shown(source: Media | None, config: VideoConfig) -> Shown:
    video = load_video(Media("video", path=str(VIDEO)), ACCESS, config)
    return Shown(video, Frame(*video.original, duration=video.duration), source=source)


def test_frames_are_read_that_the_prompt_left_out() -> None:
    few = VideoConfig(fps=0.1, min_frames=1, max_frames=2)
    one = shown(Media("video", path=str(VIDEO)), few)
    view = View((one,), ACCESS)
    call = {"span": [0.2, 1.2]}
    parts = Frames(count=4).call("frames", call, view)
    times = [float(str(part).split()[0]) for part in parts[::2]]  # type: ignore[index]
    assert len(times) == 4 and 0.15 <= times[0] < times[-1] <= 1.25
    whole = load_video(
        Media("video", path=str(VIDEO)), ACCESS, VideoConfig(fps=1000.0, max_frames=300)
    )
    nearest = int(np.abs(np.array(whole.times) - times[-1]).argmin())
    read, known = np.asarray(parts[-1]).astype(int), whole.frames[nearest].astype(int)  # type: ignore[index]
    assert read.shape == known.shape and np.abs(read - known).mean() < 8


def test_without_a_file_there_are_the_frames_that_were_shown() -> None:
    view = View((shown(None, VideoConfig(fps=4.0)),), ACCESS)
    parts = Frames(count=3).call("frames", {"span": [0, 1]}, view)
    assert len(parts) == 6  # type: ignore[arg-type]
    with pytest.raises(Refused, match="span: expected"):
        Frames().call("frames", {"span": [900, 901]}, view)
    with pytest.raises(Refused, match="video 2 does not exist"):
        Frames().call("frames", {"span": [0, 1], "video": 2}, view)


def test_a_stretch_of_audio_is_cut_by_seconds() -> None:
    path = next((ROOT / "examples/data/fsdd").rglob("*.flac"))
    audio = load_audio(Media("audio", path=str(path)), ACCESS, AudioConfig())
    view = View((Shown(audio, Frame(duration=audio.duration)),))
    found = Listen().call("listen", {"span": [0.1, 0.2]}, view)
    assert isinstance(found, Audio)
    assert np.array_equal(found.samples, audio.samples[int(0.1 * 16000) : int(0.2 * 16000)])
    with pytest.raises(Refused, match=r"at most 0\.05 seconds"):
        Listen(max_duration_s=0.05).call("listen", {"span": [0.1, 0.2]}, view)


def test_a_stretch_is_of_the_sound_where_both_are_shown() -> None:
    audio = Audio(np.zeros(16_000, np.float32), 8000)
    video = shown(None, VideoConfig(fps=1.0, max_frames=4))
    view = View((video, Shown(audio, Frame(duration=2.0))), ACCESS)
    with pytest.raises(Refused, match="span: expected"):
        Listen().call("listen", {"span": [2.5, 2.6]}, view)
    for number in ("one", 7, None):
        with pytest.raises(Refused):
            Listen().call("listen", {"span": [0, 1], "audio": number}, view)
