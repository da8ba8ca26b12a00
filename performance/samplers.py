"""Measure what a sampler over very many rows costs a step, in CPU time and in memory.

`python performance/samplers.py [--rows 10000000] [--prompts 16]` prints a table. Each sampler runs in a
process of its own, in which it chooses, learns and reports `--batches` batches of drawn difficulties
and rewards; beside it stands the step of the quickstart, `--step` CPU seconds. `worn`: after 100 times
`--prompts` times `--batches` rows have been seen. Memory is the growth of the process at its
highest while the sampler begins and works, its column of difficulties included.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import resource
import statistics
import time
from typing import Any

import numpy as np

from vlmrl import plugins
from vlmrl.data.loader import DrawPlan
from vlmrl.data.sampler import AdaptiveSampler, SeenRewards, SourceRows

SAMPLERS: dict[str, dict[str, Any]] = {
    "mixture": {},
    "curriculum": {"difficulty": "level"},
    "adarft": {"difficulty": "level", "target": 30.0},
    "cdas": {},
    "prioritised": {},
}
LAG = 4


def measure(
    name: str, rows: int, prompts: int, batches: int
) -> tuple[list[float], list[float], int]:
    """Return the CPU seconds of each batch, fresh and worn, and the highest memory in bytes."""
    random = np.random.RandomState(0)
    values = np.empty(rows, np.float32)
    for begin in range(0, rows, 2**16):  # in parts: memory at its highest is what is measured
        values[begin : begin + 2**16] = 100 * random.random_sample(
            len(values[begin : begin + 2**16])
        )
    source = SourceRows("drawn", rows, 1.0, lambda _: values.copy())
    before = _highest()
    sampler = plugins.build("sampler", name, SAMPLERS[name])
    plan = DrawPlan(sampler, [source], 0, prompts, LAG)
    for array in plan.arrays.values():
        array += 0  # pages that were never written would not count
    fresh = run(plan, 0, prompts, batches, random)
    worn: list[float] = []
    if isinstance(sampler, AdaptiveSampler):
        for _ in range(batches):
            some = np.unique(random.randint(rows, size=100 * prompts))
            sampler.learn(plan._state, SeenRewards(some, random.random_sample(len(some))))
        worn = run(plan, batches, prompts, batches, random)
    return fresh, worn, _highest() - before


def run(plan: DrawPlan, begin: int, prompts: int, batches: int, random: Any) -> list[float]:
    """Draw and learn batches; return the CPU seconds of each."""
    stream = plan.stream(begin * prompts, wait=False)
    seconds = []
    for batch in range(begin, begin + batches):
        start = time.process_time()
        draws = [plan.place(row) for row in itertools.islice(stream, prompts)]
        if plan.adapts:
            plan.note(batch, prompts, draws)
        plan.learn(draws, random.random_sample(prompts).tolist())
        seconds.append(time.process_time() - start)
    return seconds


def _highest() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--step", type=float, default=0.5, help="CPU seconds of a step")
    asked = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    print("| sampler | ms a step | of a step | ms, worn | of a step | MiB |")
    print("|---|---|---|---|---|---|")
    for name in SAMPLERS:
        with spawn.Pool(1) as pool:
            fresh, worn, memory = pool.apply(
                measure, (name, asked.rows, asked.prompts, asked.batches)
            )
        cells = [name]
        for seconds in (fresh, worn):
            middle = statistics.median(seconds) if seconds else None
            cells += (
                ["", ""]
                if middle is None
                else [f"{1000 * middle:.2f}", f"{middle / asked.step:.1%}"]
            )
        print(f"| {' | '.join([*cells, f'{memory / 2**20:.0f}'])} |", flush=True)


if __name__ == "__main__":
    main()
