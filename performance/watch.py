"""`vlmrl watch` on a long run: CPU seconds to the first page and of an update, and memory over appends.

    python performance/watch.py [--steps 10000] [--appends 1800]

A run folder is made up in a temporary folder: metrics of the names and number of the quickstart's, an
evaluation every 50 steps, of 200 samples with images. Then lines are appended one at a time, and after each
one the page asks for what is new, with the first sections open, as a browser that is left
open does for an hour. CPU seconds are those of this process.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import tempfile
import time
from pathlib import Path
from statistics import median

import psutil
from PIL import Image
from starlette.testclient import TestClient

from vlmrl.config import load
from vlmrl.features.report.watch_server import WatchedRuns, build_watch_app
from vlmrl.runs import run_folder
from vlmrl.system import files

METRICS = """
reward/mean source/shapes/reward reward/box_iou source/shapes/box_iou reward/format
source/shapes/format rollout/length rollout/answered rollout/truncated rollout/masked
rollout/killed_grader mode/think/share mode/direct/share mode/none/share mode/none/reward
mode/none/box_iou mode/none/format mode/none/length mode/think/reward mode/think/box_iou
mode/think/format mode/think/length reward/std rollout/uniform_share source/shapes/uniform_share
loss/ratio loss/clip_low loss/clip_high rollout/entropy rollout/logprob_gap rollout/logprob_kl
update/shared rollout/logprob_max_ratio loss/total update/grad_norm update/lr update/tokens
update/skipped time/data time/generate time/reward time/logprob time/update time/sync
""".split()
OPEN = (
    "status",
    "sentence",
    "curve",
    "pairs",
    "layout",
    "rollouts",
    "Reward",
    "Evaluation",
    "numbers",
)


def line_of(step: int) -> dict[str, float]:
    return {"step": step, **{name: random.random() for name in METRICS}}


def sample_of(number: int, step: int) -> dict[str, object]:
    x = (number % 5) / 10
    box = [x, x, x + 0.4, x + 0.4]
    score = min(0.3 + step / 20_000, 1.0)
    verdict = {
        "score": score,
        "parts": {},
        "answer": [{"box": box}],
        "note": "",
        "applies": True,
        "fault": None,
    }
    completion = {
        "text": "<think>left</think><answer>here</answer>", "thought": "left", "answer": "here",
        "finish_reason": "stop", "tokens": 16, "reward": score, "valid": True, "advantage": 0.1, "kept": True,
        "verdicts": {"box_iou": verdict},
    }  # fmt: skip
    medium = {
        "kind": "image",
        "name": "x",
        "start": None,
        "end": None,
        "thumbnail": f"{number % 40}.png",
    }
    return {
        "id": str(number), "source": "shapes", "question": "Where?", "prompt": "Where?", "media": [medium],
        "frame": {}, "main_medium": 0, "drawn": "greedy",
        "truth": {"boxes": [{"box": box}], "none": False}, "completions": [completion],
    }  # fmt: skip


def make_run(folder: Path, steps: int) -> None:
    run_folder.write_config(folder, load("quickstart", [f"run.steps={2 * steps}"]))
    files.write_lines(run_folder.metrics_path(folder), map(line_of, range(1, steps + 1)))
    media = run_folder.media_folder(folder)
    media.mkdir(parents=True)
    for number in range(40):
        image = Image.effect_noise((84, 84), 60).convert("RGB")
        image.save(media / f"{number}.png")
    for step in range(0, steps + 1, 50):
        metrics = {
            "reward": 0.3,
            "box_iou": 0.3 + step / 20_000,
            "format": 1.0,
            "sampled/box_iou": 0.3,
        }
        bounds = {name: [value - 0.02, value + 0.02] for name, value in metrics.items()}
        samples = [sample_of(number, step) for number in range(200)] if step in (0, steps) else []
        result = {"metrics": metrics, "intervals": bounds, "pass_at_k": None, "num_samples": 200}
        run_folder.write_evaluation(folder, step, result, samples)
    groups = [
        {**sample_of(n, steps), "completions": sample_of(n, steps)["completions"] * 8}
        for n in range(16)
    ]
    files.write_lines(run_folder.rollouts_path(folder, steps), groups)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--appends", type=int, default=1800)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "long"
        make_run(folder, given.steps)
        runs = WatchedRuns(Path(root))
        client = TestClient(build_watch_app(runs, None, ("testserver",)))
        seen = dict.fromkeys(OPEN, "")

        def ask() -> tuple[float, int]:
            begin = time.process_time()
            reply = client.get("/run/long/changes", params={"seen": json.dumps(seen)})
            seen.update({name: key for name, (key, _) in reply.json().items()})
            return time.process_time() - begin, len(reply.content)

        begin = time.process_time()
        page = client.get("/run/long")
        shell = time.process_time() - begin
        first, size = ask()
        print(f"first page: {shell + first:.3f} CPU s; {(len(page.content) + size) / 1e6:.2f} MB")
        begin, run = time.process_time(), runs.get("long")
        assert run is not None
        run.fitting.join()
        print(f"fit of compute, beside the page: {time.process_time() - begin:.3f} CPU s more")
        process, spent, held = psutil.Process(), [], []
        for number in range(given.appends):
            files.append_line(run_folder.metrics_path(folder), line_of(given.steps + number + 1))
            spent.append(ask()[0])
            if number % 100 == 0:
                gc.collect()
                held.append(process.memory_info().rss / 2**20)
        spent.sort()
        print(
            f"update: median {1000 * median(spent):.1f} ms CPU, "
            f"95 % {1000 * spent[int(0.95 * len(spent))]:.1f} ms"
        )
        print("resident MiB after each 100 appends:", " ".join(f"{one:.0f}" for one in held))


if __name__ == "__main__":
    main()
