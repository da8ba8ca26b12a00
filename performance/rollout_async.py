"""What generating ahead gains: the time of a step with η = 0 and with η = 1, one core for each side.

    export OMP_NUM_THREADS=1
    .venv-vllm/bin/python performance/rollout_async.py --width 128 --epochs 2
    .venv-vllm/bin/torchrun --standalone --nproc-per-node 2 performance/rollout_async.py --servers 2

The trainer, all its ranks, is pinned to one core, the servers with all their threads to another. Blocks
of steps with η = 0 and η = 1 take turns on the same trainer and servers; the first and the last step of
a block are left out (with η = 1 they generate, or train, alone). Goal: at least 1.8x, with two ranks and
two servers 1.6x, where generation and training take equally long. Where other programs want these cores
the clock says little: with η = 1 they lose the core that waits. The CPU seconds of either side then tell
what the gain would be on cores of their own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psutil
from tables import head

from vlmrl import config
from vlmrl.assemble import build, lifecycle
from vlmrl.policy.checkpoint import Progress
from vlmrl.system import distributed
from vlmrl.system.timers import PhaseTimers
from vlmrl.training.rollout_queue import RolloutQueue
from vlmrl.training.trainer import Trainer

ENGINE = (
    "engine={{name: vllm_server, options: {{enforce_eager: true, max_model_len: 1024, "
    "block_size: 32, kv_cache_gib: 0.5, num_servers: {servers}}}}}"
)
REWARD = f"rewards=[{__file__}:varied]"
IDLE = ("rollout/trainer_waiting", "rollout/generation_idle")
Steps = dict[str, list[float]]
"""Of every step that counts: seconds of the clock, and of each phase."""


def varied(completion: object) -> float:
    """A number in [0, 1) that hardly any two completions have in common."""
    ids: Sequence[int] = completion.token_ids  # type: ignore[attr-defined]
    return sum(ids) % 997 / 997


def pin(process: psutil.Process, core: int) -> None:
    """Keep a process, with the threads that it has and will have, on one core."""
    for thread in process.threads():
        os.sched_setaffinity(thread.id, {core})


def server_seconds() -> float:
    """CPU seconds of the processes that this one started, so far."""
    times = (process.cpu_times() for process in psutil.Process().children(recursive=True))
    return sum(t.user + t.system for t in times)


def block(trainer: Trainer, staleness: int, steps: int, found: Steps) -> None:
    """So many steps with this η; what they took goes to `found`."""
    rollout = trainer.config.rollout.model_copy(update={"max_staleness": staleness})
    run = trainer.config.run.model_copy(update={"steps": steps})
    settings = trainer.config.model_copy(update={"rollout": rollout, "run": run})
    queue = RolloutQueue(trainer.loader, trainer.engine, trainer.policy, settings)
    timers = PhaseTimers()
    trainer = replace(trainer, config=settings, queue=queue, timers=timers, done=0)
    for number in range(steps):
        start, trained, served = time.perf_counter(), time.process_time(), server_seconds()
        metrics = trainer.step().metrics
        if 0 < number < steps - 1:
            found["step"].append(time.perf_counter() - start)
            found["trainer"].append(time.process_time() - trained)
            found["server"].append(server_seconds() - served)
            for key, value in metrics.items():
                if key.startswith("time/") or key in IDLE:
                    found[key].append(value)
    trainer.queue.close()


def line(staleness: int, found: Steps) -> str:
    """A line of the table."""
    of = {key: statistics.median(values) for key, values in found.items()}
    training = of["time/update"] + of["time/logprob"]
    if staleness:
        idle = [of[key] for key in IDLE]
    else:  # one side always waits for the other
        idle = [of["time/generate"] / of["step"], 1 - of["time/generate"] / of["step"]]
    cells = [
        of["step"],
        of["time/generate"],
        training,
        of["time/sync"],
        of["trainer"],
        of["server"],
    ]
    return (
        f"| {staleness} | {' | '.join(f'{c:.2f}' for c in cells)} | {idle[0]:.0%} | {idle[1]:.0%} "
        f"| {len(found['step'])} |"
    )


def begin_apart(
    options: argparse.Namespace, folder: str, layers: int, more: Sequence[str], stack: ExitStack
) -> Trainer:
    """Begin RL of a small quickstart whose servers have another core than the trainer.

    `more` are overrides: the engine, and what differs.
    """
    width = options.width
    text = {"hidden_size": width, "num_attention_heads": width // 32, "num_hidden_layers": layers}
    overrides = [
        f"run.dir={folder}",
        "run.threads=1",
        f"model.build.text={ {**text, 'intermediate_size': 3 * width} }",
        "sft=null",
        "evaluation=null",
        "checks={parity_every: 0, media_ablation_every: 0}",
        "tracking.tensorboard=false",
        f"rollout.prompts={options.prompts}",
        f"rollout.group_size={options.group}",
        REWARD,
        *more,
    ]
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("this needs two cores")
    trainer = build.build_trainer(config.load("quickstart", overrides), None, Progress(), stack)
    trainer.policy.stop_ids = ()  # every completion goes on to its limit
    lifecycle.begin_rl(trainer, None, Progress())
    own = psutil.Process()
    for server in own.children(recursive=True):
        pin(server, cores[1])
    pin(own, cores[0])
    return trainer


def measure(options: argparse.Namespace, folder: str) -> str:
    """The table and the ratio."""
    overrides = [
        f"rollout.max_tokens={options.tokens}",
        f"optimizer.epochs={options.epochs}",
        "rollout.max_staleness=1",
        ENGINE.format(servers=options.servers),
    ]
    results: dict[int, Steps] = {0: defaultdict(list), 1: defaultdict(list)}
    with ExitStack() as stack:
        trainer = begin_apart(options, folder, 3, overrides, stack)
        block(trainer, 0, 3, defaultdict(list))  # warms up
        for number in range(options.blocks):
            for staleness in (0, 1) if number % 2 else (1, 0):
                block(trainer, staleness, options.steps + 2, results[staleness])
    medians = {s: statistics.median(found["step"]) for s, found in results.items()}
    rows = [
        *head(
            "| η | step, s | waiting for completions, s | logprob and update, s | sync, s "
            "| trainer, CPU s | server, CPU s | trainer waits | generation idle | steps |"
        ),
        *(line(staleness, found) for staleness, found in results.items()),
    ]
    sides = [statistics.median(results[1][side]) for side in ("trainer", "server")]
    ratio = (
        f"Step time η = 0 over η = 1: {medians[0] / medians[1]:.2f}x (medians). By the CPU seconds of "
        f"η = 1, on cores of their own: {sum(sides) / max(sides):.2f}x."
    )
    return "\n".join([*rows, "", ratio])


def main() -> None:
    """Measure and print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=1, help="passes of the update over a batch")
    parser.add_argument("--steps", type=int, default=6, help="steps of a block that count")
    parser.add_argument("--blocks", type=int, default=4, help="blocks of each η")
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, distributed.session(timeout_s=600):
        text = measure(options, distributed.from_main(folder))
        if not distributed.is_main():
            return
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
