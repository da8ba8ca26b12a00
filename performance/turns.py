"""Rollouts of several turns: the shared update with a crop inside, and what a call costs the trainer.

    python performance/turns.py [--prompt 1024] [--suffix 256] [--group 8] [--calls 60] [--repeats 3]
                                [--out performance/results/turns.md]

One thread, float32, random weights, process CPU seconds. Update: forward, loss and backward of one
group, the ways as in `update.py`, the least of several; what follows the prompt is a turn, an
observation with a crop of 64 tokens, and a turn. The tower of a crop runs once in every way.
Calls: `crop` of an image of 1920 x 1080, a fresh image every ten calls; the worker's own time is not
counted. `call` is the toolbox alone; `with the observation` adds the view, the chat template, the
tokenizer and the image processor.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from groups import CELL, WORDS, Case, flops, image_prompt, make_policy, update
from PIL import Image
from update import Ways, cpu_seconds

from vlmrl.answers import templates
from vlmrl.forward.logprobs import Sharing
from vlmrl.forward.packing import pack
from vlmrl.interaction.driver import first_view
from vlmrl.interaction.tools import AskedCall, PolicyTurn, Toolbox
from vlmrl.interaction.trail import Trail
from vlmrl.parts.tools.crop import Crop
from vlmrl.policy.policy import Policy
from vlmrl.schema import Advantages, Completion, MicroBatch, Prompt, PromptBatch, Rollouts

CROP = 224
"""Pixels of a side of what becomes 64 tokens."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--suffix", type=int, default=256)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--calls", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    lines = []
    for line in chain(update_table(asked), [""], call_table(asked.calls)):
        print(line, flush=True)
        lines.append(line)
    if asked.out:
        asked.out.write_text("\n".join(lines) + "\n")


def update_table(asked: argparse.Namespace) -> Iterator[str]:
    p, s, g = asked.prompt, asked.suffix, asked.group
    yield (
        "| P | suffix | G | vision tower | trainers s | plain s | shared s "
        "| trainers / shared (FLOPs) | plain / shared (FLOPs) |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for tower, freeze in (("trained", ()), ("frozen", ("vision", "projector"))):
        policy = make_policy(freeze=list(freeze))
        group = turns_batch(policy, image_prompt(policy, p), s, g)
        apart = replace(group, prompts=group.prompts * g, group=torch.arange(g))
        off, on = (Sharing(setting, 1.3, True, verified=True) for setting in ("off", "on"))
        ways: Ways = {
            "trainers": partial(update, policy, apart, off),
            "plain": partial(update, policy, group, off),
            "shared": partial(update, policy, group, on),
        }
        seconds = cpu_seconds(ways, asked.repeats, min)
        expected = predicted(policy, Case(p, s, g), int(group.mask.sum()), 1 if freeze else 3)
        cells = [p, s, g, tower, *(f"{seconds[way]:.2f}" for way in ways)]
        for way in ("trainers", "plain"):
            measured, by_flops = (of[way] / of["shared"] for of in (seconds, expected))
            cells.append(f"**{measured:.2f}x** ({by_flops:.2f})")
        yield "| " + " | ".join(map(str, cells)) + " |"


def predicted(policy: Policy, case: Case, scored: int, passes: int) -> dict[str, float]:
    """Floating-point operations by way; `passes`: forwards that the towers' work is worth."""
    own, crop = flops(policy, case), flops(policy, Case((CROP // CELL) ** 2 + WORDS, 1, 1))
    head = 4 * own.head * scored / (case.group * case.completion)
    alike = head + passes * case.group * crop.tower
    plain, shared = (3 * text + alike for text in (own.plain, own.shared))
    image = passes * own.tower
    return {
        "trainers": plain + case.group * image,
        "plain": plain + image,
        "shared": shared + image,
    }


def turns_batch(policy: Policy, prompt: Prompt, length: int, group: int) -> MicroBatch:
    """One group of rollouts of two turns, each with a crop of its own; `length` tokens follow the prompt."""
    rng = np.random.default_rng(1)
    said = []
    for _ in range(group):
        crop = Image.fromarray(rng.integers(0, 255, (CROP, CROP, 3), np.uint8))
        trail = Trail(policy.family, policy.processor, prompt).write(words(prompt, 16))
        trail = trail.observe(*trail.encode_observation([crop]))
        last = words(prompt, length - (trail.length - len(prompt.encoded.ids)))
        said.append(trail.write(last).finish(last, "stop"))
    rollouts = Rollouts(PromptBatch((prompt,)), (tuple(said),))
    kept = torch.ones(1, group, dtype=torch.bool)
    advantages = Advantages(torch.randn(1, group), kept, torch.ones(1, group))
    (batch,) = pack(rollouts, advantages, updates=1, micro_tokens=10**9, max_tokens=length)
    return batch.micro[0]


def words(prompt: Prompt, count: int) -> Completion:
    """A turn of any tokens."""
    told = {"token_ids": (1,) * count, "logprobs": (0.0,) * count}
    return templates.completion("", prompt.sample.template, prompt.frame, **told)


def call_table(calls: int) -> Iterator[str]:
    yield "| CPU milliseconds of the trainer for a crop of 1920 x 1080 | median | largest |"
    yield "|---|---|---|"
    policy = make_policy()
    prompt, rng = image_prompt(policy, 64), np.random.default_rng(2)
    alone, whole = [], []
    with Toolbox([Crop()], policy.family.space) as toolbox:
        for number in range(calls):
            if number % 10 == 0:
                pixels = rng.integers(0, 255, (1080, 1920, 3), np.uint8)
                shown = replace(prompt, media=(Image.fromarray(pixels),))
            asked = AskedCall("crop", {"bbox_2d": [100, 100, 100 + CROP, 100 + CROP]})
            view = first_view(policy.family, policy.processor, shown)
            begin = time.process_time()
            (outcome,) = toolbox.run_all([PolicyTurn([asked], view)])
            alone.append(1000 * (time.process_time() - begin))
            assert outcome.fault is None, outcome.fault
            trail = Trail(policy.family, policy.processor, prompt).write(words(prompt, 8))
            trail.observe(*trail.encode_observation(outcome.parts))
            whole.append(1000 * (time.process_time() - begin))
    for name, times in (("call", alone), ("with the observation", whole)):
        warm = times[len(times) // 6 :]
        yield f"| {name} | {statistics.median(warm):.1f} | {max(warm):.1f} |"


if __name__ == "__main__":
    main()
