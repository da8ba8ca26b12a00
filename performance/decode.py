"""Engine hf with a group's prompt held once, compared with a copy of it in every row.

    python performance/decode.py [--prompt 1024] [--completion 64] [--group 8 64] [--prompts 1 4]
                                [--repeats 5] [--out performance/results/decode.md]

The model of `update.py` (a small Qwen2.5-VL, random weights, float32), one thread. Prompts have one
image each; of several the shortest has three quarters of the tokens, so that the others' keys are
padded. Completions go on to the limit. Each way has a process of its own, and they take turns. `all` are
CPU seconds of a call, median; `decoding` those beyond a call for one token, which prefills alike in both
ways. `cache` are the bytes of keys and values as the last token is decoded; `peak` is by how much the
process grows at most after the prefill of its first call, what it had freed given back before.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import multiprocessing
import os
import statistics
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tables import head

os.environ["OMP_NUM_THREADS"] = "1"

WAYS = {"copied": 2**62, "shared": 0}
"""How many tokens have to be saved before a prompt is held once."""
HEAD = (
    "| prompts | P | G | C | all: copied s | shared s | **ratio** | decoding: copied s | shared s "
    "| **ratio** | cache: copied MiB | shared MiB | peak: copied MiB | shared MiB |"
)
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Case:
    prompts: int
    prompt: int
    group: int
    completion: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--completion", type=int, default=64)
    parser.add_argument("--group", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--prompts", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    lines = head(HEAD)
    print(*lines, sep="\n", flush=True)
    for prompts in asked.prompts:
        for group in asked.group:
            case = Case(prompts, asked.prompt, group, asked.completion)
            lines.append(row(case, measure(case, asked.repeats)))
            print(lines[-1], flush=True)
    if asked.out:
        machine = (
            f"{datetime.date.today()}, {os.cpu_count()} CPU cores, load {os.getloadavg()[2]:.1f}"
        )
        asked.out.write_text("\n".join(["# Decoding", "", machine, "", *lines, ""]))


def row(case: Case, found: dict[str, dict[str, float]]) -> str:
    cells = [str(n) for n in (case.prompts, case.prompt, case.group, case.completion)]
    for key in ("all", "decoding"):
        copied, shared = (found[way][key] for way in WAYS)
        cells += [f"{copied:.2f}", f"{shared:.2f}", f"**{copied / shared:.2f}x**"]
    for key in ("cache", "peak"):
        cells += [f"{found[way][key] / MIB:.1f}" for way in WAYS]
    return "| " + " | ".join(cells) + " |"


def measure(case: Case, repeats: int) -> dict[str, dict[str, float]]:
    """Return the medians of all ways, which take turns."""
    spawn, turns, processes = multiprocessing.get_context("spawn"), {}, []
    for way in WAYS:
        turns[way], theirs = spawn.Pipe()
        processes.append(spawn.Process(target=run, args=(way, case, repeats, theirs), daemon=True))
        processes[-1].start()
        theirs.close()
    seen: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(1 + repeats):
        for way, turn in turns.items():
            turn.send("go")
            seen[way].append(turn.recv())
    for process in processes:
        process.join()
    return {way: summary(took) for way, took in seen.items()}


def summary(took: list[dict[str, float]]) -> dict[str, float]:
    """Return the median seconds but for the first call, which warms up and tells the memory."""
    times = {key: statistics.median(t[key] for t in took[1:]) for key in ("all", "decoding")}
    return {**times, "cache": took[0]["cache"], "peak": took[0]["peak"]}


def run(way: str, case: Case, repeats: int, turn: Connection) -> None:
    """Generate once for each turn, and send what it took."""
    import torch
    from groups import image_prompt, make_policy

    from vlmrl.engines import hf, prompt_rows
    from vlmrl.engines.base import Sampling
    from vlmrl.schema import PromptBatch

    torch.set_num_threads(1)
    prompt_rows.MIN_SAVED = WAYS[way]
    held: list[Any] = []
    watch = Growth()
    hold = prompt_rows.hold

    def note(*arguments: Any) -> Any:
        watch.begin()
        held[:] = [hold(*arguments)]
        return held[0]

    hf.hold = note  # type: ignore[attr-defined]
    policy = make_policy()
    policy.stop_ids = ()
    engine = hf.Hf().start(policy)
    sizes = [case.prompt] * max(1, case.prompts - 1) + [case.prompt * 3 // 4] * (case.prompts > 1)
    batch = PromptBatch(tuple(image_prompt(policy, n) for n in sizes))

    def seconds(longest: int) -> float:
        held.clear()
        start = time.process_time()
        engine.generate(batch, Sampling(case.group, longest, seed=1))
        return time.process_time() - start

    for _ in range(1 + repeats):
        turn.recv()
        whole = seconds(case.completion)
        found = {"cache": cache_bytes(held[0]), "peak": watch.grown()}
        turn.send({**found, "all": whole, "decoding": whole - seconds(1)})


class Growth:
    """By how much this process has grown at most since `begin` (Linux)."""

    def begin(self) -> None:
        ctypes.CDLL(None).malloc_trim(0)  # else what was freed before hides what comes
        Path("/proc/self/clear_refs").write_text("5")
        self.before = status("VmRSS")

    def grown(self) -> float:
        return status("VmHWM") - self.before


def status(key: str) -> float:
    """Return a size of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith(key))


def cache_bytes(held: Any) -> float:
    """Return the bytes of all keys and values, each storage once."""
    tensors = [x for layer in held.cache.layers for x in (layer.keys, layer.values)]
    tensors += [x for pair in getattr(held, "prompts", ()) for x in pair]
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}
    return float(sum(storages.values()))


if __name__ == "__main__":
    main()
