"""Policy update: the shared forward against the plain one and against the way of today's trainers.

    python benchmarks/update.py [--prompt 64 256 1024] [--completion 16 64 256] [--group 4 8]
                                [--repeats 3] [--out benchmarks/results/update.md]

Forward, loss and backward of one group of a small Qwen2.5-VL (random weights, float32, one thread,
vision tower trained). Three ways: `trainers` computes prompt and vision tower once per completion
(TRL and others), `plain` is our plain forward (tower once per prompt), `ours` is what the trainer
chooses with `optimizer.shared_forward: auto`. Times are process CPU seconds, medians of repeats
that take turns. The prediction is the ratio of the floating-point operations.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from PIL import Image

from vlmrl.config import BuildConfig, ModelConfig
from vlmrl.data.prompt import make_prompt
from vlmrl.forward import Sharing
from vlmrl.models.loading import load_model
from vlmrl.policy import Policy
from vlmrl.schema import Media, MicroBatch, Prompt, Sample, Truth

TEXT = {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2}
TEXT |= {"num_hidden_layers": 4, "intermediate_size": 1408}
VISION = {"depth": 4, "hidden_size": 192, "num_heads": 6, "intermediate_size": 576}
VISION |= {"fullatt_block_indexes": [3]}
VOCABULARY = 4096
WORDS = 16
CELL = 28
"""Pixels of a side of what becomes one token."""


@dataclass(frozen=True)
class Case:
    """One group: a prompt of `prompt` tokens, `group` completions of `completion` tokens."""

    prompt: int
    completion: int
    group: int


@dataclass(frozen=True)
class Result:
    """Median CPU seconds and MiB saved for the backward, by way; FLOPs, by way."""

    seconds: dict[str, float]
    saved: dict[str, float]
    flops: dict[str, float]
    shared: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompt", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--completion", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--group", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    policy = make_policy()
    lines = [
        "| P | C | G | chosen | trainers s | plain s | ours s | vs trainers (FLOPs) "
        "| vs plain (FLOPs) | saved MiB: trainers, plain, ours |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    print(*lines, sep="\n", flush=True)
    for prompt in asked.prompt:
        for completion in asked.completion:
            for group in asked.group:
                case = Case(prompt, completion, group)
                lines.append(row(case, measure(policy, case, asked.repeats)))
                print(lines[-1], flush=True)
    if asked.out:
        asked.out.write_text("\n".join(lines) + "\n")


def make_policy() -> Policy:
    build = BuildConfig(family="qwen2_5_vl", text=TEXT, vision=VISION)
    config = ModelConfig(build=build)
    loaded = load_model(config, ["user assistant ? ? ?"] * 9, seed=0)
    loaded.model.resize_token_embeddings(VOCABULARY, mean_resizing=False)
    return Policy(*loaded, config)


def measure(policy: Policy, case: Case, repeats: int) -> Result:
    """Every way once to warm up, then by turns."""
    group = micro_batch(policy, case)
    apart = replace(group, prompts=group.prompts * case.group, group=torch.arange(case.group))
    always, never = (Sharing(s, 1.3, possible=True, verified=True) for s in ("auto", "off"))
    ways: dict[str, Callable[[], None]] = {
        "trainers": lambda: update(policy, apart, never),
        "plain": lambda: update(policy, group, never),
        "ours": lambda: update(policy, group, always),
    }
    saved = {name: saved_mib(policy, way) for name, way in ways.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeats):
        names = list(ways)[turn % 3 :] + list(ways)[: turn % 3]  # nobody always goes first
        for name in names:
            seconds[name].append(cpu_seconds(ways[name]))
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    shared = always.pays(group)
    return Result(medians, saved, predicted(policy, case, shared), shared)


def update(policy: Policy, micro: MicroBatch, sharing: Sharing) -> None:
    """Forward, loss and backward."""
    policy.sharing = sharing
    for parameter in policy.trainable:
        parameter.grad = None
    logprobs, _ = policy.logprobs(micro)
    (logprobs * micro.advantages).sum().backward()


def micro_batch(policy: Policy, case: Case) -> MicroBatch:
    """One group with random completions."""
    generator = torch.Generator().manual_seed(0)
    shape = (case.group, case.completion)
    ids = torch.randint(0, 100, shape, generator=generator)
    return MicroBatch(
        prompts=(image_prompt(policy, case.prompt),),
        group=torch.zeros(case.group, dtype=torch.long),
        token_ids=ids,
        mask=torch.ones(shape, dtype=torch.bool),
        sampling_logprobs=torch.zeros(shape),
        advantages=torch.randn(case.group, 1, generator=generator),
        weights=torch.ones(case.group),
    )


def image_prompt(policy: Policy, tokens: int) -> Prompt:
    """A prompt of exactly so many tokens, almost all of them of one picture."""
    rows, columns = grid(tokens)
    pixels = np.random.default_rng(0).integers(0, 255, (CELL * rows, CELL * columns, 3), np.uint8)

    def with_words(count: int) -> Prompt:
        parts = (Media("image", data=b"-"), " ".join(["?"] * count))
        sample = Sample("0", "noise", parts, Truth())
        return make_prompt(sample, [Image.fromarray(pixels)], policy.family, policy.processor)

    made = (with_words(count) for count in range(1, tokens))
    return next(prompt for prompt in made if len(prompt.encoded.ids) == tokens)


def grid(tokens: int) -> tuple[int, int]:
    """Rows and columns of the picture's tokens; the rest is the chat template and words."""
    columns = int((tokens - WORDS) ** 0.5)
    return (tokens - WORDS) // columns, columns


def cpu_seconds(work: Callable[[], None]) -> float:
    gc.collect()
    start = time.process_time()
    work()
    return time.process_time() - start


def saved_mib(policy: Policy, work: Callable[[], None]) -> float:
    """Bytes that autograd keeps for the backward, each storage once, weights not counted."""
    weights = {p.untyped_storage().data_ptr() for p in policy.base.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        work()
    return sum(kept.values()) / 2**20


def predicted(policy: Policy, case: Case, shared: bool) -> dict[str, float]:
    """Floating-point operations of forward and backward (three times the forward), by way.

    A weight matrix costs 2 operations per number and token, attention 4 * width per visible pair.
    The head's backward computes the logits again.
    """
    model = policy.base.model
    p, c, g = case.prompt, case.completion, case.group
    rows, columns = grid(p)
    patches = 4 * rows * columns
    width, layers = TEXT["hidden_size"], TEXT["num_hidden_layers"]
    full = len(VISION["fullatt_block_indexes"])  # type: ignore[arg-type]
    pairs = patches * (patches * full + 64 * (VISION["depth"] - full))  # type: ignore[operator]
    visual = model.visual
    tower = 2 * patches * (numbers(visual.patch_embed) + numbers(visual.blocks))
    tower += 2 * patches / 4 * numbers(visual.merger)
    tower += 4 * VISION["hidden_size"] * pairs  # type: ignore[operator]
    head = g * c * 2 * VOCABULARY * width * 4

    def text(tokens: int, visible: float) -> float:
        return 3 * (
            2 * numbers(model.language_model.layers) * tokens + 4 * width * layers * visible
        )

    plain = text(g * (p + c), g * (p + c) ** 2 / 2)
    packed = text(p + g * (c - 1), p * p / 2 + g * c * p + g * c * c / 2)
    ours = packed if shared else plain
    return {
        "trainers": plain + head + 3 * g * tower,
        "plain": plain + head + 3 * tower,
        "ours": ours + head + 3 * tower,
    }


def numbers(module: torch.nn.Module) -> int:
    """How many numbers its weight matrices hold."""
    return sum(p.numel() for p in module.parameters() if p.ndim > 1)


def row(case: Case, found: Result) -> str:
    def ratio(way: str) -> str:
        measured = found.seconds[way] / found.seconds["ours"]
        return f"**{measured:.2f}x** ({found.flops[way] / found.flops['ours']:.2f})"

    ways: Sequence[str] = ("trainers", "plain", "ours")
    cells = [case.prompt, case.completion, case.group, "shared" if found.shared else "plain"]
    cells += [f"{found.seconds[way]:.2f}" for way in ways]
    cells += [ratio("trainers"), ratio("plain")]
    cells += [", ".join(f"{found.saved[way]:.0f}" for way in ways)]
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    main()
