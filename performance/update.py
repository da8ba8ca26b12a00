"""Policy update: the shared forward against the plain one and against the way of today's trainers.

    python performance/update.py [--tables grid memory small states] [--repeats 3]
                                [--prompt 64 256 1024] [--completion 16 64 256] [--group 4 8]
                                [--out performance/results/update.md]

Forward, loss and backward on one thread, float32, random weights, vision tower trained. Times are
process CPU seconds, medians of repeats that take turns; saved MiB is the most that autograd keeps
for the backward at one time. `grid`: one group of a Qwen2.5-VL of width 512 in three ways:
`trainers` computes prompt and vision tower once per completion (TRL and others), `plain` is our
plain forward (tower once per prompt), `ours` is what the trainer chooses with
`optimizer.shared_forward: auto`; the prediction is the ratio of floating-point operations.
`memory`: the low-memory update against plain forwards of one completion each. `small`: 16 groups of
8 short completions of the model that the quickstart builds. `states` (not by default): a Qwen3.5 of the same
width, three of whose four layers are gated delta-nets, in plain PyTorch.

Exits with 1 if a gate is broken: `ours` is never slower than 0.95 of `plain`; the low-memory update
keeps no more than plain forwards of one completion each and is at least 3 times as fast where the
operations saved allow that (else three quarters of what they allow).
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from groups import (
    CORPUS,
    Case,
    image_prompt,
    low_memory_update,
    make_policy,
    micro_batch,
    predicted,
    update,
    update_in_parts,
)

from vlmrl.config import BuildConfig, ModelConfig
from vlmrl.forward.logprobs import Sharing
from vlmrl.models.loading import load_model
from vlmrl.policy.policy import Policy
from vlmrl.schema import MicroBatch

FULL_VISION = {"depth": 4, "hidden_size": 192, "num_heads": 6, "intermediate_size": 576}
"""A tower as in `groups.VISION`, all of whose layers see the whole image."""
SMALL = 25
"""Tokens of a prompt of the quickstart."""

Ways = dict[str, Callable[[], None]]
broken: list[str] = []
"""What was found wrong."""


def gate(holds: bool, what: str) -> None:
    if not holds:
        broken.append(what)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", nargs="+", default=["grid", "memory", "small"])
    parser.add_argument("--prompt", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--completion", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--group", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    cases = [Case(p, c, g) for p in asked.prompt for c in asked.completion for g in asked.group]
    tables = {
        "grid": lambda: grid_table(cases, asked.repeats),
        "memory": lambda: memory_table(asked.repeats),
        "small": lambda: small_table(asked.repeats),
        "states": lambda: states_table(asked.repeats),
    }
    lines: list[str] = []
    for name in asked.tables:
        for line in tables[name]():
            print(line, flush=True)
            lines.append(line)
        lines.append("")
    if asked.out:
        asked.out.write_text("\n".join(lines).rstrip() + "\n")
    if broken:
        raise SystemExit("\n".join(["broken gates:", *broken]))


def grid_table(cases: Sequence[Case], repeats: int) -> Iterator[str]:
    yield (
        "| P | C | G | chosen | trainers s | plain s | ours s "
        "| trainers / ours (FLOPs) | plain / ours (FLOPs) | saved MiB |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    policy = make_policy()
    for case in cases:
        group = micro_batch(policy, case)
        apart = replace(group, prompts=group.prompts * case.group, group=torch.arange(case.group))
        always, never = (Sharing(s, 1.3, possible=True, verified=True) for s in ("auto", "off"))
        ways: Ways = {
            "trainers": partial(update, policy, apart, never),
            "plain": partial(update, policy, group, never),
            "ours": partial(update, policy, group, always),
        }
        shared = always.pays(group)
        saved = [f"{most_saved(policy, way):.0f}" for way in ways.values()]
        seconds = cpu_seconds(ways, repeats)
        flops = predicted(policy, case, shared)
        ratios = [
            f"**{seconds[way] / seconds['ours']:.2f}x** ({flops[way] / flops['ours']:.2f})"
            for way in ("trainers", "plain")
        ]
        gate(seconds["plain"] >= 0.95 * seconds["ours"], f"{case}: ours is slower than plain")
        chosen = "shared" if shared else "plain"
        cells = [case.prompt, case.completion, case.group, chosen]
        cells += [f"{s:.2f}" for s in seconds.values()]
        yield "| " + " | ".join(map(str, [*cells, *ratios, ", ".join(saved)])) + " |"


def memory_table(repeats: int) -> Iterator[str]:
    yield (
        "| P | C | G | plain, 1 at a time: s, MiB "
        "| shared, whole group: s, MiB | low memory: s, MiB | plain / low memory (FLOPs) |"
    )
    yield "|---|---|---|---|---|---|---|"
    policy = make_policy()
    for case in (Case(256, 64, 8), Case(1024, 64, 8), Case(256, 256, 8), Case(256, 256, 16)):
        group = micro_batch(policy, case)
        ways: Ways = {
            "plain": partial(update_in_parts, policy, group, 1),
            "shared": partial(update, policy, group, Sharing("on", 1.3, True, verified=True)),
            "low": partial(low_memory_update, policy, group),
        }
        saved = {name: most_saved(policy, way) for name, way in ways.items()}
        seconds = cpu_seconds(ways, repeats)
        cells = [str(n) for n in (case.prompt, case.completion, case.group)]
        cells += [f"{seconds[name]:.2f}, {saved[name]:.0f}" for name in ways]
        gate(saved["low"] <= saved["plain"], f"{case}: low memory keeps more than plain")
        ratio = seconds["plain"] / seconds["low"]
        flops = predicted(policy, case, shared=True)
        possible = flops["trainers"] / flops["ours"]  # one at a time, plain computes all G times
        gate(ratio >= min(3, possible * 0.75), f"{case}: low memory is only {ratio:.2f}x plain")
        cells.append(f"**{ratio:.2f}x** ({possible:.2f})")
        yield "| " + " | ".join(cells) + " |"


def small_table(repeats: int) -> Iterator[str]:
    yield (
        "| quickstart's model, 16 groups of 8 "
        "| trainers s | plain s | ours s | trainers / ours | plain / ours |"
    )
    yield "|---|---|---|---|---|---|"
    config = ModelConfig(build=BuildConfig())
    policy = Policy(*load_model(config, CORPUS), config)
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(14, 19, (128,), generator=generator)  # 16 tokens are a good answer
    shape = (128, int(lengths.max()))
    micro = MicroBatch(
        prompts=tuple(image_prompt(policy, SMALL, (3, 3)) for _ in range(16)),
        group=torch.arange(16).repeat_interleave(8),
        token_ids=torch.randint(0, 100, shape, generator=generator),
        mask=torch.arange(shape[1]) < lengths[:, None],
        sampling_logprobs=torch.zeros(shape),
        advantages=torch.randn(128, 1, generator=generator),
        weights=torch.ones(128),
    )
    one_each = [micro.prompts[i] for i in micro.group]
    apart = replace(micro, prompts=tuple(one_each), group=torch.arange(128))
    always, never = (Sharing(s, 1.3, possible=True, verified=True) for s in ("auto", "off"))
    seconds = cpu_seconds(
        {
            "trainers": partial(update, policy, apart, never),
            "plain": partial(update, policy, micro, never),
            "ours": partial(update, policy, micro, always),
        },
        5 * repeats,
    )
    cells = [f"P = {SMALL}, C = 14 to 18"] + [f"{s:.3f}" for s in seconds.values()]
    cells += [f"**{seconds[way] / seconds['ours']:.2f}x**" for way in ("trainers", "plain")]
    gate(seconds["plain"] >= 0.95 * seconds["ours"], "small: ours is slower than plain")
    yield "| " + " | ".join(cells) + " |"


def states_table(repeats: int) -> Iterator[str]:
    yield "| P | C | G | plain s | shared s | plain / shared (FLOPs) | saved MiB: plain, shared |"
    yield "|---|---|---|---|---|---|---|"
    policy = make_policy(vision=FULL_VISION, family="qwen3_5")
    for case in (Case(256, 64, 8), Case(1024, 64, 8)):
        group = micro_batch(policy, case)
        always, never = (Sharing(s, 1.3, possible=True, verified=True) for s in ("on", "off"))
        ways: Ways = {
            "plain": partial(update, policy, group, never),
            "shared": partial(update, policy, group, always),
        }
        saved = [f"{most_saved(policy, way):.0f}" for way in ways.values()]
        seconds = cpu_seconds(ways, repeats)
        flops = predicted(policy, case, shared=True)
        cells = [str(n) for n in (case.prompt, case.completion, case.group)]
        cells += [f"{s:.2f}" for s in seconds.values()]
        ratio = f"**{seconds['plain'] / seconds['shared']:.2f}x**"
        cells.append(f"{ratio} ({flops['plain'] / flops['ours']:.2f})")
        yield "| " + " | ".join([*cells, ", ".join(saved)]) + " |"


def cpu_seconds(
    ways: Ways, repeats: int, of: Callable[[list[float]], float] = statistics.median
) -> dict[str, float]:
    """CPU seconds of every way, in turns after one to warm up; nobody always goes first."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeats + 1):
        first = turn % len(ways)
        for name in [*ways][first:] + [*ways][:first]:
            gc.collect()
            start = time.process_time()
            ways[name]()
            seconds[name].append(time.process_time() - start)
    return {name: of(times[1:]) for name, times in seconds.items()}


def most_saved(policy: Policy, work: Callable[[], None]) -> float:
    """The most MiB that autograd keeps at one time, each storage once, weights not counted."""
    weights = {p.untyped_storage().data_ptr() for p in policy.base.parameters()}
    users: Counter[int] = Counter()
    now = most = 0

    class Kept:
        def __init__(self, tensor: torch.Tensor) -> None:
            nonlocal now, most
            self.tensor, storage = tensor, tensor.untyped_storage()
            self.key = storage.data_ptr()
            self.size = 0 if self.key in weights else storage.nbytes()
            users[self.key] += 1
            now += self.size if users[self.key] == 1 else 0
            most = max(most, now)

        def __del__(self) -> None:
            nonlocal now
            users[self.key] -= 1
            now -= self.size if users[self.key] == 0 else 0

    with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
        work()
    return most / 2**20


if __name__ == "__main__":
    main()
