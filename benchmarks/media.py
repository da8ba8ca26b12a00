"""Media decoding beside what people use today, on the same files: speed, sameness, memory.

    python benchmarks/media.py clips --data ../shared/data/video --out benchmarks/results/media.md
    python benchmarks/media.py memory --data ../shared/data/video --loads 10000

Clips: frames a second of `load_clip` and of `qwen_vl_utils.fetch_video` (decord back-end), process
CPU seconds, the ways taking turns, medians over rounds; each way decodes the same frames (checked)
and makes them smaller to the same size. `apart` is `decode`: the same in the bounded process, with
the frames sent back (wall seconds: the work is another process's).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from vlmrl import torchvision_shim  # noqa: F401  isort: skip
from qwen_vl_utils import vision_process

from vlmrl.config import VideoConfig
from vlmrl.data.decode import decode
from vlmrl.data.media import Access, Reading
from vlmrl.data.video import load_clip
from vlmrl.schema import Media, Sample, Truth

VIDEO = VideoConfig(max_pixels=28 * 28 * 64)
"""Two frames a second, none larger than 64 tokens: what a training run would ask for."""


def files(folder: Path) -> list[Path]:
    """Every clip of the data, once."""
    rows = [json.loads(x) for s in ("train", "test") for x in (folder / f"{s}.jsonl").open()]
    return sorted({folder / path for row in rows for path in row["videos"]})


def ours(path: Path, folder: Path) -> np.ndarray:
    """Frames [T, H, W, 3] by this library, in line."""
    return load_clip(Media("video", path=str(path)), Access(str(folder)), VIDEO).frames


def apart(path: Path, folder: Path) -> np.ndarray:
    """The same by the process that decodes for training."""
    sample = Sample("row", "bench", (Media("video", path=str(path)),), Truth())
    (clip,) = decode(sample, Access(str(folder)), Reading(video=VIDEO))
    return clip.frames  # type: ignore[union-attr]


def theirs(path: Path, _: Path) -> np.ndarray:
    """Frames [T, 3, H, W] float32 by qwen-vl-utils with the same budget."""
    asked = {"video": str(path), "fps": VIDEO.fps, "min_frames": VIDEO.min_frames}
    asked |= {"max_frames": VIDEO.max_frames, "max_pixels": VIDEO.max_pixels}
    asked |= {"total_pixels": VIDEO.total_pixels, "min_pixels": 28 * 28}
    return vision_process.fetch_video(asked).numpy()


def same(a: np.ndarray, b: np.ndarray) -> tuple[bool, float]:
    """Whether shapes agree, and the largest difference in grey levels."""
    b = b.transpose(0, 2, 3, 1)
    return a.shape == b.shape, float(np.abs(a - b).max()) if a.shape == b.shape else np.inf


def spent(way: Callable[[Path, Path], np.ndarray], paths: list[Path], folder: Path) -> Any:
    """CPU seconds, wall seconds and frames of one pass over the files."""
    cpu, wall, frames = time.process_time(), time.perf_counter(), 0
    for path in paths:
        frames += len(way(path, folder))
    return time.process_time() - cpu, time.perf_counter() - wall, frames


def clips(folder: Path, rounds: int) -> str:
    """The table of clips."""
    paths = files(folder)
    differences, shapes = [], 0
    for path in paths:
        equal, most = same(ours(path, folder), theirs(path, folder))
        shapes += equal
        differences.append(most)
    ways = {"vlmrl": ours, "qwen-vl-utils": theirs, "vlmrl, apart": apart}
    found: dict[str, list[Any]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append(spent(way, paths, folder))
    frames = found["vlmrl"][0][2]
    rows = ["| way | CPU s | wall s | frames / CPU s |", "|---|---|---|---|"]
    for name, passes in found.items():
        cpu, wall = (statistics.median(p[i] for p in passes) for i in (0, 1))
        rate = "" if name == "vlmrl, apart" else f"{frames / cpu:.0f}"
        rows.append(f"| {name} | {cpu:.2f} | {wall:.2f} | {rate} |")
    cpu = {n: statistics.median(p[0] for p in passes) for n, passes in found.items()}
    ratios = [b[0] / a[0] for a, b in zip(found["vlmrl"], found["qwen-vl-utils"], strict=True)]
    return "\n".join(
        [
            f"{len(paths)} clips, {frames} frames, {rounds} rounds, one thread.",
            "",
            *rows,
            "",
            f"vlmrl / qwen-vl-utils: {cpu['qwen-vl-utils'] / cpu['vlmrl']:.2f}x "
            f"(rounds: {min(ratios):.2f} to {max(ratios):.2f}). Same number and size of frames: "
            f"{shapes} of {len(paths)} clips; largest difference after resizing: "
            f"{max(differences):.0f} grey levels (bytes here, floats there).",
        ]
    )


def memory(folder: Path, loads: int) -> str:
    """Resident memory of this process, and of all it started, over many loads."""
    paths, lines = files(folder), []
    process = psutil.Process()
    for number in range(loads):
        apart(paths[number % len(paths)], folder)
        if number in (loads // 100, loads // 10, loads // 2, loads - 1):
            sizes = [process.memory_info().rss]
            sizes += [child.memory_info().rss for child in process.children(recursive=True)]
            lines.append(
                f"after {number + 1} loads: {sizes[0] / 2**20:.0f} MiB here, "
                f"{sum(sizes[1:]) / 2**20:.0f} MiB in the processes apart"
            )
    return "\n".join(lines)


def main() -> None:
    """Run what was asked for, print it, and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("clips", "memory"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--loads", type=int, default=10000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    vision_process.get_video_reader_backend = lambda: "decord"
    folder = options.data.resolve()
    text = (
        clips(folder, options.rounds) if options.what == "clips" else memory(folder, options.loads)
    )
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
