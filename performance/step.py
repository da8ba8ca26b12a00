"""One GRPO step of vlmrl compared with TRL's GRPOTrainer, by phase.

    python performance/step.py [--prompt-tokens 256 1024] [--completion 64] [--group 8]
                              [--prompts 1] [--frozen] [--vocabulary 4096] [--ways trl plain shared]
                              [--repeats 3] [--out performance/results/step.md]

Both load the model of `update.py` (a small Qwen2.5-VL, random weights, float32) and train all of it
on the same prompts, one image each, with the same reward; completions have exactly `--completion`
tokens, and each side draws its own. All completions of a step go through one forward, without
gradient checkpointing. TRL generates with transformers, and its head scores completion rows only,
as on a GPU (on a CPU it would score the prompt too). `plain` and `shared` are vlmrl with
`optimizer.shared_forward` off and on; `bonus` is `shared` with an entropy bonus, `onednn` with
`run.cpu_products: onednn`. The first of `--ways` is what the others are compared with. With `--frozen`
neither side trains the vision tower and the projector, as most published recipes do not.

Every way has a process of its own with one thread; they take turns, step by step, the first to warm
up. Times are process CPU seconds, medians; `spread` is (longest - shortest) / median of a step.
`update` is forward, loss, backward, clipping and optimizer, `other` the rest of a step: images,
rewards, advantages; of vlmrl also as a share of the step, which is to be 5 % at most. Memory is the
peak of the process, imports included.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import multiprocessing
import os
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from step_ways import PHASES, PUBLISHED, WAYS, Case, Step, medians, save_inputs
from tables import head

os.environ["OMP_NUM_THREADS"] = "1"

COLUMNS = "| P | C | G | way | generate s | update s | other s | step s | spread | peak MiB |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompt-tokens", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--completion", type=int, default=64)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=1, help="groups in a step")
    parser.add_argument("--frozen", action="store_true", help="do not train the vision tower")
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=PUBLISHED)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    lines = head(COLUMNS)
    print(*lines, sep="\n", flush=True)
    for prompt in asked.prompt_tokens:
        with tempfile.TemporaryDirectory() as name:
            shape = (prompt, asked.completion, asked.group, asked.prompts)
            case = Case(*shape, 1 + asked.repeats, Path(name), asked.frozen, asked.vocabulary)
            steps = measure(case, asked.ways)
            found = {way: medians(way, case, own) for way, own in steps.items()}
        rows = [row(case, way, own, found[asked.ways[0]]) for way, own in found.items()]
        print(*rows, sep="\n", flush=True)
        lines += rows
    if asked.out:
        asked.out.write_text("\n".join([heading(asked.ways[0], asked.frozen), "", *lines, ""]))


def measure(case: Case, ways: Sequence[str]) -> dict[str, list[Step]]:
    """The steps of every way, by turns."""
    spawn = multiprocessing.get_context("spawn")
    preparation = spawn.Process(target=prepare, args=(case,))
    preparation.start()
    preparation.join()
    turns, processes = {}, []
    for way in ways:
        turns[way], theirs = spawn.Pipe()
        # Not a daemon, which could have no workers for its verifiers; without us it reads EOF.
        processes.append(spawn.Process(target=run, args=(way, case, theirs)))
        processes[-1].start()
        theirs.close()
    steps: dict[str, list[Step]] = {way: [] for way in ways}
    try:
        for _ in range(case.steps):
            for way, turn in turns.items():
                turn.send("go")
                steps[way].append(turn.recv())
    finally:
        for turn in turns.values():
            turn.close()  # or the others wait for a turn when one has failed
    for process in processes:
        process.join()
    return steps


def prepare(case: Case) -> None:
    """Save what all ways load."""
    from groups import make_policy

    save_inputs(make_policy(vocabulary=case.vocabulary), case)


def run(way: str, case: Case, turn: Connection) -> None:
    """All steps of one way: each waits for its turn and is sent back."""
    import torch

    import vlmrl.system.torchvision_shim  # noqa: F401  (before anything imports torchvision)

    torch.set_num_threads(1)
    torch.manual_seed(0)
    WAYS[way](case, turn)


def row(case: Case, way: str, own: Step, first: Step) -> str:
    """A line; behind a figure how many times that of the first way is as large."""

    def compare(key: str, digits: int) -> str:
        return f"{own[key]:.{digits}f}" + f" ({first[key] / own[key]:.2f}x)" * (own is not first)

    shape = f"{case.prompt} | {case.completion} | {case.prompts} x {case.group} | {way}"
    cells = {phase: compare(phase, 2) for phase in PHASES}
    if way != "trl":
        cells["other"] = f"{own['other']:.3f}, {own['other'] / own['step']:.1%}"
    seconds = " | ".join(cells.values())
    return f"| {shape} | {seconds} | {own['spread']:.0%} | {compare('peak', 0)} |"


def heading(first: str, frozen: bool) -> str:
    packages = ("torch", "transformers", *["trl"] * (first == "trl"))
    versions = [f"{p} {importlib.metadata.version(p)}" for p in packages]
    machine = f"{os.cpu_count()}-core CPU machine, load {os.getloadavg()[2]:.1f}"
    about = f"{datetime.date.today()}, {machine}; {', '.join(versions)}"
    other = "TRL" if first == "trl" else f"`{first}`"
    return f"# One GRPO step compared with {other}{', frozen vision tower' * frozen}\n\n{about}"


if __name__ == "__main__":
    main()
