"""What training on the first finished groups gains where lengths are lognormal: idle share, steps per hour.

    export OMP_NUM_THREADS=1
    .venv-vllm/bin/python performance/rollout_streaming.py --out performance/results/rollout_streaming.md

A trainer and a vLLM server on CPU cores, pinned as in `rollout_async.py`. Blocks of steps with the queue of
whole batches and with `rollout.streaming` take turns, by the same seeds and lengths: all completions of a
group have the length exp(normal(log(median), sigma)), drawn from the request's seed, up to `--longest`. As
many groups are in flight either way, and the server has slots for those of one batch. The first step of a
block fills the queue and is left out; after the last one what is in flight is dropped, so both sides are in
full course all the time. A slot is idle while nothing that was asked for could be in it.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rollout_async import begin_apart
from tables import head

from vlmrl.engines import vllm_server
from vlmrl.system.timers import PhaseTimers
from vlmrl.training.rollout_queue import RolloutQueue
from vlmrl.training.trainer import Trainer

ENGINE = (
    "engine={{name: vllm_server, options: {{enforce_eager: true, max_model_len: 1024, block_size: 32, "
    "kv_cache_gib: 0.5, max_num_seqs: {slots}}}}}"
)


class Slots:
    """Seconds in which the server's slots were taken, added up over the slots."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._lock = threading.Lock()
        self._asked, self._taken, self._since = 0, 0.0, time.monotonic()

    def change(self, sequences: int) -> float:
        """Add `sequences` to those in flight, or take them away; return the seconds taken until now."""
        with self._lock:
            now = time.monotonic()
            self._taken += min(self._asked, self.count) * (now - self._since)
            self._asked, self._since = self._asked + sequences, now
            return self._taken


@dataclass
class Way:
    """What the steps of one way of taking groups took: seconds of the clock, and of waiting in them."""

    seconds: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    taken: float = 0.0
    tokens: int = 0
    versions: list[float] = field(default_factory=list)
    oldest: list[float] = field(default_factory=list)
    too_old: list[float] = field(default_factory=list)

    def row(self, name: str, slots: int) -> str:
        """A line of the table."""
        whole = sum(self.seconds)
        cells = [
            name,
            f"{3600 * len(self.seconds) / whole:.0f}",
            f"{3600 * self.tokens / whole / 1000:.0f}",
            f"{1 - self.taken / whole / slots:.0%}",
            f"{sum(self.waited) / whole:.0%}",
            f"{statistics.median(self.seconds):.2f}",
            f"{statistics.fmean(self.versions):.2f}",
            f"{max(self.oldest):.0f}",
            f"{statistics.fmean(self.too_old):.1%}",
            str(len(self.seconds)),
        ]
        return f"| {' | '.join(cells)} |"


def set_lengths(slots: Slots, median: float, sigma: float, longest: int) -> None:
    """Give every request a lognormal length, and let `slots` know of it."""
    fields_of, ask, check = vllm_server.sampling_fields, vllm_server.ask, vllm_server.check

    def lengths(*arguments: Any) -> dict[str, Any]:
        fields = fields_of(*arguments)
        length = random.Random(fields["seed"]).lognormvariate(math.log(median), sigma)
        return {**fields, "max_tokens": max(1, min(longest, round(length)))}

    def noted(server: Any, prompt: Any, fields: Mapping[str, Any], *rest: Any) -> Any:
        slots.change(fields["n"])
        try:
            return ask(server, prompt, fields, *rest)
        finally:
            slots.change(-fields["n"])

    def checked(prompt: Any, answer: Any, policy: Any, sampling: Any, versions: Any) -> None:
        whole = replace(sampling, max_tokens=len(answer.group[0].token_ids))
        check(prompt, answer, policy, whole, versions)

    vllm_server.sampling_fields, vllm_server.ask, vllm_server.check = lengths, noted, checked


def block(trainer: Trainer, streaming: bool, steps: int, seed: int, slots: Slots, way: Way) -> None:
    """Steps of one way; what they took is added to it."""
    rollout = trainer.config.rollout.model_copy(update={"streaming": streaming})
    run = trainer.config.run.model_copy(update={"steps": 10**6, "seed": seed})
    settings = trainer.config.model_copy(update={"rollout": rollout, "run": run})
    queue = RolloutQueue(trainer.loader, trainer.engine, trainer.policy, settings)
    trainer = replace(trainer, config=settings, queue=queue, timers=PhaseTimers(), done=0)
    for number in range(steps + 1):
        begin, taken = time.monotonic(), slots.change(0)
        report = trainer.step()
        if number:
            metrics = report.metrics
            way.seconds.append(time.monotonic() - begin)
            way.waited.append(metrics["time/generate"])
            way.taken += slots.change(0) - taken
            groups = report.rollouts.completions
            way.tokens += sum(c.num_tokens for group in groups for c in group)
            runs = [c.versions for group in groups for c in group]
            way.versions.append(statistics.fmean(len(dict(versions)) for versions in runs))
            way.oldest.append(metrics["rollout/staleness_max"])
            way.too_old.append(metrics.get("rollout/too_old", 0.0))
    queue.close()


def measure(options: argparse.Namespace, folder: str) -> str:
    """The table and the ratio."""
    slots = Slots(options.prompts * options.group)
    overrides = [
        f"rollout.max_tokens={options.longest}",
        f"rollout.max_staleness={options.staleness}",
        ENGINE.format(slots=slots.count),
    ]
    ways = {False: Way(), True: Way()}
    with ExitStack() as stack:
        trainer = begin_apart(options, folder, 2, overrides, stack)
        set_lengths(slots, options.median, options.sigma, options.longest)
        block(trainer, False, 1, 0, slots, Way())  # warms up
        for number in range(options.blocks):
            for streaming in (False, True) if number % 2 else (True, False):
                block(trainer, streaming, options.steps, number + 1, slots, ways[streaming])
                print(number, streaming, ways[streaming].row("", slots.count), flush=True)
    names = {False: "whole batches", True: "streaming"}
    ratio = sum(ways[False].seconds) / sum(ways[True].seconds)
    return "\n".join(
        [
            *head(
                "| groups are taken as | steps an hour | thousand tokens an hour | slots idle "
                "| trainer waits | step, s (median) | versions a completion | oldest token, updates "
                "| too old | steps |"
            ),
            *(way.row(names[streaming], slots.count) for streaming, way in ways.items()),
            "",
            f"Steps an hour, streaming over whole batches: {ratio:.2f}x.",
        ]
    )


def main() -> None:
    """Measure and print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--group", type=int, default=4)
    parser.add_argument("--median", type=float, default=24.0, help="tokens of the median group")
    parser.add_argument("--sigma", type=float, default=1.0, help="deviation of the logarithm")
    parser.add_argument("--longest", type=int, default=512)
    parser.add_argument("--staleness", type=int, default=1)
    parser.add_argument("--steps", type=int, default=8, help="steps of a block that count")
    parser.add_argument("--blocks", type=int, default=4, help="blocks of each way")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = measure(options, folder)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
