"""How long training stands still for a checkpoint, written at once or in the background, in turns.

`python performance/saves.py`. A model of some hundred MB is saved with its AdamW state; after each save the
thread goes on with a fixed amount of work, whose CPU seconds say what the writing one takes of it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from vlmrl.config import BuildConfig, ModelConfig, OptimizerConfig
from vlmrl.models.loading import load_model
from vlmrl.policy.checkpoint import Progress
from vlmrl.policy.checkpoint_writer import CheckpointWriter
from vlmrl.policy.optimizers import adamw
from vlmrl.policy.policy import Policy

CORPUS = ["Where is the red shape?", "How many green circles?"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument(
        "--work", type=int, default=20, help="products of two 1,000 x 1,000 matrices"
    )
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    policy = build(arguments.hidden, arguments.layers)
    found: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
    alone = [timed(lambda: work(arguments.work))[1] for _ in range(arguments.rounds)]
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for number in range(2 * arguments.rounds):
            later = bool(number % 2)
            with CheckpointWriter(Path(folder), policy, 1, later) as writer:
                stood, _ = timed(lambda w=writer, n=number: w.save(Progress("rl", n + 1)))
                _, cpu = timed(lambda: work(arguments.work))
                left, _ = timed(writer.finish)
            files = max((Path(folder) / "checkpoints").iterdir(), key=os.path.getmtime).rglob("*")
            written = sum(file.stat().st_size for file in files if file.is_file()) / 1e6
            found[later].append((stood, cpu, left))
    size = 4 * sum(weight.numel() for weight in policy.trainable) / 1e6
    print(f"A checkpoint has {written:.0f} MB. Its weights have {size:.0f} MB.\n")
    print(f"| {size:.0f} MB of weights | stands still, s (median) | least | most | "
          "CPU s of the work after it | waited for at the end, s |")  # fmt: skip
    print("|---|---|---|---|---|---|")
    print(f"| no save | | | | {statistics.median(alone):.2f} | |")
    for later, each in found.items():
        stood, cpu, left = zip(*each, strict=True)
        medians = [f"{statistics.median(column):.2f}" for column in (stood, cpu, left)]
        name = "in the background" if later else "at once"
        print(
            f"| {name} | {medians[0]} | {min(stood):.2f} | {max(stood):.2f} | {' | '.join(medians[1:])} |"
        )


def build(hidden: int, layers: int) -> Policy:
    """Return a policy of this size with the state of an optimizer that has made a step."""
    heads = {"num_attention_heads": hidden // 64, "num_key_value_heads": hidden // 64}
    text = {"hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": 3 * hidden}
    config = ModelConfig(build=BuildConfig(family="qwen2_5_vl", text=text | heads, vocab_size=320))
    policy = Policy(*load_model(config, CORPUS, seed=0), config)
    policy.use_optimizer(adamw(policy.trainable, lr=1e-5), OptimizerConfig(lr=1e-5))
    for weight in policy.trainable:
        weight.grad = torch.full_like(weight, 1e-3)
    policy.optimizer.step()
    policy.optimizer.zero_grad(set_to_none=True)
    return policy


def work(products: int) -> None:
    """Multiply matrices."""
    matrix = torch.ones(1000, 1000)
    for _ in range(products):
        matrix = (matrix @ matrix).clamp(0, 1)


def timed(act: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds by the clock and the CPU seconds of this thread that a call takes."""
    clock, cpu = time.monotonic(), time.thread_time()
    act()
    return time.monotonic() - clock, time.thread_time() - cpu


if __name__ == "__main__":
    main()
