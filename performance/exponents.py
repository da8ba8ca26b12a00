"""How time and memory of what a run does grow with its sizes; prints Markdown with the exponent of each.

    export OMP_NUM_THREADS=1
    python performance/exponents.py > performance/results/exponents.md
    python performance/exponents.py --only "rows: open" --most 10000000

What grows is measured in a process of its own, by rising sizes after one work of the smallest: CPU seconds
of the work, and how far the highest memory of the process is above that after the first. The exponent is the
slope between the logarithms of the two largest sizes: 1 is linear. The model is the one of `groups.py`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vlmrl.policy.policy import Policy
    from vlmrl.schema import Prompt

SHOWN = 1.1
"""Exponents above this are bold."""
NOISE_S, NOISE_MIB = 0.05, 4.0
"""An exponent between figures below these says nothing."""
Work = Callable[[], object]


@dataclass(frozen=True)
class Axis:
    """What grows: its sizes, and what makes the work of a size; files go to a folder."""

    sizes: tuple[int, ...]
    prepare: Callable[[int, Path], Work]


def open_rows(size: int, folder: Path) -> Work:
    """Open a file of `size` rows and make a sample of the row in its middle."""
    from vlmrl.config import SourceConfig
    from vlmrl.data.source import open_source

    file = folder / f"rows-{size}.jsonl"
    if not file.exists():
        with file.open("w", encoding="utf-8") as handle:
            for row in range(size):
                line = {"id": row, "question": f"What is {row} + 1?", "answer": str(row + 1)}
                handle.write(json.dumps(line) + "\n")
    config = SourceConfig(card="records", options={"path": str(file)}, split="train")
    return lambda: open_source(config).sample(size // 2)


def draw_rows(size: int, folder: Path) -> Work:
    """Start the sampler `prioritised` over `size` rows; draw 20 batches of 16 and report their rewards."""
    import numpy as np
    from samplers import LAG, run

    from vlmrl import plugins
    from vlmrl.data.loader import DrawPlan
    from vlmrl.data.sampler import SourceRows

    source = SourceRows("drawn", size, 1.0, lambda _: np.zeros(size, np.float32))
    sampler = plugins.build("sampler", "prioritised", {})
    return lambda: run(DrawPlan(sampler, [source], 0, 16, LAG), 0, 16, 20, np.random.RandomState(0))


def decode_video(size: int, folder: Path) -> Work:
    """Read a video of `size` seconds, 5 frames a second, as the defaults of the config sample it."""
    import av
    import numpy as np

    from vlmrl.config import VideoConfig
    from vlmrl.media.access import Access
    from vlmrl.media.video import load_video
    from vlmrl.schema import Media

    file = folder / f"video-{size}.mp4"
    if not file.exists():
        with av.open(str(file), "w") as container:
            stream = container.add_stream("libx264", rate=5)
            stream.width, stream.height, stream.pix_fmt = 128, 96, "yuv420p"
            stream.codec_context.gop_size = 25
            for number in range(5 * size):
                pixels = np.full((96, 128, 3), number % 256, np.uint8)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
            container.mux(stream.encode(None))
    media = Media("video", path=str(file))
    return lambda: load_video(media, Access(str(folder)), VideoConfig())


def prompt_images(size: int, folder: Path) -> Work:
    """Make a prompt of `size` images, 16 tokens each."""
    from groups import make_policy

    policy = make_policy()
    return lambda: images_prompt(policy, size)


def update_images(size: int, folder: Path) -> Work:
    """Update on 4 completions of 16 tokens whose prompt has `size` images."""
    from gpu_day.day import ON
    from groups import Case, make_policy, micro_batch, update

    policy = make_policy()
    micro = micro_batch(policy, Case(0, 16, 4), prompt=images_prompt(policy, size))
    return lambda: update(policy, micro, ON)


def images_prompt(policy: Policy, size: int) -> Prompt:
    """Return a prompt of `size` images, 112 pixels a side."""
    import numpy as np
    from PIL import Image

    from vlmrl.data.prompt import make_prompt
    from vlmrl.schema import Media, Sample, Truth

    draw = np.random.default_rng(0)
    images = [Image.fromarray(draw.integers(0, 255, (112, 112, 3), np.uint8)) for _ in range(size)]
    sample = Sample("0", "noise", (*(Media("image", data=b"-") for _ in images), "? ?"), Truth())
    return make_prompt(sample, images, policy.family, policy.processor)


def update_group(size: int, folder: Path) -> Work:
    """Update on a group of `size` completions of 16 tokens whose prompt has 64."""
    from gpu_day.day import ON
    from groups import Case, make_policy, micro_batch, update

    policy = make_policy()
    micro = micro_batch(policy, Case(64, 16, size))
    return lambda: update(policy, micro, ON)


def update_completion(size: int, folder: Path) -> Work:
    """Update on two completions of `size` tokens whose prompt has 64."""
    from gpu_day.day import ON
    from groups import Case, make_policy, micro_batch, update

    policy = make_policy()
    micro = micro_batch(policy, Case(64, size, 2))
    return lambda: update(policy, micro, ON)


def generate_completion(size: int, folder: Path) -> Work:
    """Generate four completions of `size` tokens with engine `hf`."""
    from groups import image_prompt, make_policy

    from vlmrl.engines.base import Sampling
    from vlmrl.engines.hf import Hf
    from vlmrl.schema import PromptBatch

    policy = make_policy()
    policy.stop_ids = ()
    engine = Hf().start(policy)
    batch = PromptBatch((image_prompt(policy, 64),))
    return lambda: engine.generate(batch, Sampling(n=4, max_tokens=size, seed=1))


AXES = {
    "rows: open": Axis((10**3, 10**4, 10**5, 10**6, 10**7), open_rows),
    "rows: draw": Axis((10**3, 10**4, 10**5, 10**6, 10**7), draw_rows),
    "seconds of a video: read": Axis((10, 60, 300, 1800), decode_video),
    "images: prompt": Axis((1, 4, 16, 64), prompt_images),
    "images: update": Axis((1, 4, 16, 64), update_images),
    "group: update": Axis((4, 16, 64, 256, 512), update_group),
    "completion: update": Axis((64, 256, 1024, 4096), update_completion),
    "completion: generate": Axis((64, 256, 1024, 4096), generate_completion),
}


def measure(name: str, sizes: list[int], folder: Path) -> Iterator[tuple[int, float, float]]:
    """Yield each size with the CPU seconds of its work, and how far the highest memory is up, in MiB."""
    axis = AXES[name]
    axis.prepare(sizes[0], folder)()
    before = highest()
    for size in sorted(sizes):  # the highest memory only rises
        work = axis.prepare(size, folder)
        begun = time.process_time()
        work()
        yield size, time.process_time() - begun, highest() - before


def highest() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def slope(small: tuple[int, float], large: tuple[int, float], noise: float) -> str:
    """Return the exponent between two sizes with their figures; empty where they are noise."""
    if small[1] < noise:
        return "" if large[1] < noise else "?"
    exponent = math.log(large[1] / small[1]) / math.log(large[0] / small[0])
    return f"**{exponent:.2f}**" if exponent > SHOWN else f"{exponent:.2f}"


def row(name: str, sizes: list[int], folder: Path) -> str:
    """Measure an axis in a process of its own; return its line of the table."""
    command = [sys.executable, __file__, "--measure", name, str(folder), *map(str, sizes)]
    figures = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("["):
                print(name, line, end="", file=sys.stderr, flush=True)
                figures.append(json.loads(line))
    if process.returncode:
        raise SystemExit(f"{name}: exit status {process.returncode}")
    cells = [f"{size:,}: {s:.2f} s, {mib:.0f} MiB" for size, s, mib in figures]
    one, two = figures[-2:]
    time_, memory = (
        slope((one[0], one[which]), (two[0], two[which]), noise)
        for which, noise in ((1, NOISE_S), (2, NOISE_MIB))
    )
    return f"| {name} | {time_} | {memory} | {'; '.join(cells)} |"


def main() -> None:
    """Print the table, or measure one size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=AXES, default=[*AXES], metavar="AXIS")
    parser.add_argument("--most", type=int, help="largest size; one above the list is added to it")
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        name, folder, *sizes = asked.measure
        for figures in measure(name, [int(size) for size in sizes], Path(folder)):
            print(json.dumps(figures), flush=True)
        return
    print("| what grows | time | memory | by size: CPU seconds, growth of memory |")
    print("|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in asked.only:
            known = AXES[name].sizes
            sizes = [s for s in known if s in known[:2] or s <= (asked.most or known[-1])]
            if asked.most and asked.most > known[-1]:
                sizes.append(asked.most)
            print(row(name, sizes, Path(folder)), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
