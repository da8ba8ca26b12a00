"""Media decoding compared with what people use today, on the same files: speed, equality, memory.

    python performance/media.py video
    python performance/media.py audio
    python performance/media.py memory --loads 10000

Videos: `load_video` against `qwen_vl_utils` (decord back-end) with the same budget, only decoded and
also reduced; frames are compared bit for bit. Audio: `load_audio` against `librosa.load` at 16 kHz,
mono. Both ways take turns; figures are CPU seconds of the process on one thread, medians over rounds,
and the ratio of each round. Memory: videos, audio and images in turn through `decode`, which sends
the first two to a separate process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import librosa
import numpy as np
import psutil
import soundfile
import torch

from vlmrl.system import torchvision_shim  # noqa: F401  isort: skip
from qwen_vl_utils import vision_process

from vlmrl.config import AudioConfig, VideoConfig
from vlmrl.media.access import Access, Reading
from vlmrl.media.audio import load_audio
from vlmrl.media.decode import decode
from vlmrl.media.video import load_video
from vlmrl.schema import Media, Sample, Truth

ROOT = Path(__file__).parents[1]
HARD = ROOT / "tests" / "data" / "hard"
Way = Callable[[Path], np.ndarray]

VIDEO = VideoConfig(max_pixels=28 * 28 * 64)
"""Two frames a second, none larger than 64 tokens: what a training run would ask for."""
WHOLE = VideoConfig(max_pixels=10**9, total_pixels=10**12)
"""The same frames, none made smaller."""
AUDIO = AudioConfig(sampling_rate=16000, max_duration_s=600)
SOUNDS = ("stereo_44100.wav", "flac24.flac", "tone.mp3", "mp3_with_cover.mp3", "u8.wav", "tone.ogg")
"""Good audio among the hard files."""
LONG_SECONDS = 60


def video_files(data: Path) -> list[Path]:
    """Every video of the data, once."""
    folder = data / "video"
    rows = [json.loads(x) for s in ("train", "test") for x in (folder / f"{s}.jsonl").open()]
    return sorted({folder / path for row in rows for path in row["videos"]})


def our_frames(path: Path, config: VideoConfig) -> np.ndarray:
    """Frames [T, H, W, 3] uint8 by this library, in line."""
    return load_video(Media("video", path=str(path)), Access(str(path.parent)), config).frames


def asked(path: Path) -> dict[str, Any]:
    """What qwen-vl-utils is asked for."""
    return {
        "video": str(path),
        "fps": VIDEO.fps,
        "min_frames": VIDEO.min_frames,
        "max_frames": VIDEO.max_frames,
        "max_pixels": VIDEO.max_pixels,
        "total_pixels": VIDEO.total_pixels,
        "min_pixels": 28 * 28,
    }


def their_frames(path: Path) -> np.ndarray:
    """Frames [T, H, W, 3] float32 by qwen-vl-utils."""
    return vision_process.fetch_video(asked(path)).numpy().transpose(0, 2, 3, 1)


def their_decoded(path: Path) -> np.ndarray:
    """The same before resizing, uint8."""
    frames = vision_process.VIDEO_READER_BACKENDS["decord"](asked(path))[0]
    return frames.numpy().transpose(0, 2, 3, 1)


def our_samples(path: Path) -> np.ndarray:
    """Samples [N] float32 by this library, in line."""
    return load_audio(Media("audio", path=str(path)), Access(str(path.parent)), AUDIO).samples


def their_samples(path: Path) -> np.ndarray:
    """Samples [N] float32 by librosa."""
    return librosa.load(path, sr=AUDIO.sampling_rate, mono=True)[0]


def compared(ours: Way, theirs: Way, paths: Sequence[Path], rounds: int) -> dict[str, Any]:
    """CPU seconds of each way by round, the amount of output, and the differences by file."""
    differences, amount = [], 0
    for path in paths:
        a, b = ours(path), theirs(path)
        amount += len(a)
        count = min(len(a), len(b))
        fit = a.shape[1:] == b.shape[1:] and len(a) == len(b)
        difference = np.abs(a[:count].astype(np.float32) - b[:count]).max() if fit else np.inf
        differences.append(float(difference))
    spent: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(rounds):
        for name, way in (("ours", ours), ("theirs", theirs)):
            begin = time.process_time()
            for path in paths:
                way(path)
            spent[name].append(time.process_time() - begin)
    return {**spent, "amount": amount, "differences": differences}


def row(name: str, found: dict[str, Any], per_unit: float) -> str:
    """One line of a table; `per_unit` pieces of output are one frame, or one second."""
    ours, theirs = (statistics.median(found[key]) for key in ("ours", "theirs"))
    amount = found["amount"] / per_unit
    ratios = [b / a for a, b in zip(found["ours"], found["theirs"], strict=True)]
    same = sum(d == 0 for d in found["differences"])
    return (
        f"| {name} | {amount:.0f} | {amount / ours:.0f} | {amount / theirs:.0f} | "
        f"{theirs / ours:.2f}x ({min(ratios):.2f} to {max(ratios):.2f}) | "
        f"{same} of {len(found['differences'])} | {max(found['differences']):.3g} |"
    )


def videos(data: Path, rounds: int) -> str:
    """The table of videos."""
    paths = video_files(data)
    decoded = compared(lambda p: our_frames(p, WHOLE), their_decoded, paths, rounds)
    resized = compared(lambda p: our_frames(p, VIDEO), their_frames, paths, rounds)
    head = (
        "| | frames | vlmrl, frames / CPU s | qwen-vl-utils | ratio (rounds) | identical videos | "
        "largest difference |"
    )
    lines = [
        f"{len(paths)} videos, {rounds} rounds.",
        "",
        head,
        "|---|---|---|---|---|---|---|",
        row("decoded", decoded, 1),
        row("decoded and made smaller", resized, 1),
        "",
        "Not identical: "
        + ", ".join(p.name for p, d in zip(paths, resized["differences"], strict=True) if d),
    ]
    return "\n".join(lines)


def long_audios(folder: Path) -> list[Path]:
    """A minute of stereo at 44.1 kHz, tones and noise, in three formats."""
    rate = 44100
    time_s = np.arange(LONG_SECONDS * rate) / rate
    noise = np.random.default_rng(0).standard_normal(len(time_s)) * 0.05
    left = 0.3 * np.sin(2 * np.pi * 440 * time_s) + noise
    right = 0.3 * np.sin(2 * np.pi * (200 + 50 * time_s) * time_s)
    paths = [folder / f"long.{ending}" for ending in ("wav", "flac", "mp3")]
    for path in paths:
        soundfile.write(path, np.stack([left, right], 1).astype(np.float32), rate)
    return paths


def audios(data: Path, rounds: int) -> str:
    """Return the table of audio."""
    digits = sorted((data / "fsdd" / "audio").iterdir())
    lines = [
        f"{rounds} rounds.",
        "",
        "| | seconds | vlmrl, seconds / CPU s | librosa | ratio (rounds) | identical files | "
        "largest difference |",
        "|---|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        sets = {
            f"{len(digits)} spoken digits, FLAC, 8 kHz": digits,
            f"{len(SOUNDS)} of the hard files": [HARD / name for name in SOUNDS],
        }
        for path in long_audios(Path(folder)):
            sets[f"a minute of stereo, 44.1 kHz, {path.suffix[1:].upper()}"] = [path]
        for name, paths in sets.items():
            lines.append(
                row(name, compared(our_samples, their_samples, paths, rounds), AUDIO.sampling_rate)
            )
    return "\n".join(lines)


def memory(data: Path, loads: int) -> str:
    """Resident memory of this process, and of those it started, over many loads."""
    small = sorted(video_files(data), key=lambda path: path.stat().st_size)[:12]
    sounds = sorted((data / "fsdd" / "audio").iterdir())[:50]
    images = [HARD / name for name in ("exif_rotate6.jpg", "lossy.webp", "rgb16.png")]
    sets = (("video", small), ("audio", sounds), ("image", images))
    reading = Reading(video=VideoConfig(fps=1, max_frames=4, max_pixels=VIDEO.max_pixels))
    process, access = psutil.Process(), Access(str(ROOT))
    lines = ["| loads | MiB here | MiB in the process apart |", "|---|---|---|"]
    for number in range(loads):
        kind, paths = sets[number % 3]
        media = Media(kind, path=str(paths[number // 3 % len(paths)]))  # type: ignore[arg-type]
        decode(Sample("row", "bench", (media,), Truth()), access, reading)
        if (number + 1) % max(1, loads // 10) == 0:
            # The process apart is the largest of them; the others start it and watch over it.
            apart = max(c.memory_info().rss for c in process.children(recursive=True))
            here = process.memory_info().rss
            lines.append(f"| {number + 1} | {here / 2**20:.1f} | {apart / 2**20:.1f} |")
            print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    """Run what was asked for, print it, and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("video", "audio", "memory"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--loads", type=int, default=10000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    vision_process.get_video_reader_backend = lambda: "decord"
    data = ROOT / "examples" / "data"
    if options.what == "memory":
        text = memory(data, options.loads)
    else:
        text = (videos if options.what == "video" else audios)(data, options.rounds)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
