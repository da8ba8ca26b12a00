"""What a call through Grader actors costs: CPU of all processes, in turns with the local pool.

`python performance/graders.py` in an environment with Ray (`make venv-ray`). One node on this machine has
the graders; Ray's own daemons are not counted, its driver and the actors are. The second table says how
long after its deadline the result of a hanging call comes, by the clock.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import ray

from vlmrl.config import RewardConfig
from vlmrl.features.launch.graders import RESOURCE, RayPool, start_graders
from vlmrl.schema import Box, Completion, Frame, Parsed, Sample, Truth
from vlmrl.scoring.calls import _call
from vlmrl.scoring.reward_components import Spec, resolve
from vlmrl.system.deadline_pool import DeadlinePool, TimedPool, result

DAEMONS = ("raylet", "gcs_server", "dashboard", "runtime_env", "log_monitor", "monitor.py")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(address="local", num_cpus=0, resources={RESOURCE: 2}, include_dashboard=False,
             log_to_driver=False, object_store_memory=100 * 2**20)  # fmt: skip
    spec = resolve(RewardConfig(verifier="box_iou", timeout_s=5.0)).spec
    local, remote = DeadlinePool(2), RayPool(start_graders(1, 2, "performance"), 2)
    for lines in (cost(local, remote, spec, arguments.calls, arguments.rounds), lateness(remote)):
        for line in lines:
            print(line, flush=True)
    local.close()
    remote.close()
    ray.shutdown()


def cost(local: TimedPool, remote: TimedPool, spec: Spec, calls: int, rounds: int) -> Iterator[str]:
    """Measure small verifier calls through both pools in turns."""
    jobs = [_job(number) for number in range(calls)]
    found: dict[str, list[float]] = {"local": [], "graders": []}
    for number in range(rounds + 1):
        for name, pool in (("local", local), ("graders", remote)):
            spent = _spent(lambda pool=pool: _run(pool, spec, jobs))  # type: ignore[misc]
            if number:  # the first starts the workers
                found[name].append(1000 * spent / calls)
    yield f"| {calls} calls, {rounds} rounds in turns | CPU ms a call (median) | least | most |"
    yield "|---|---|---|---|"
    for name, each in found.items():
        yield f"| {name} | {statistics.median(each):.2f} | {min(each):.2f} | {max(each):.2f} |"
    ratios = [b / a for a, b in zip(found["local"], found["graders"], strict=True)]
    yield f"\nRatio, median of the rounds: {statistics.median(ratios):.2f}\n"


def _job(number: int) -> tuple[Completion, Sample]:
    """Return the arguments of a call of `box_iou`."""
    text = f'{{"bbox_2d": [64, 48, {100 + number % 200}, 200]}}'
    truth = Truth(boxes=(Box(0.1, 0.1, 0.3, 0.4),))
    completion = Completion(text, Parsed(text, None, "none", True, 1.0), Frame(640, 480))
    return completion, Sample(f"row-{number}", "s", ("Where?",), truth)


def lateness(pool: TimedPool) -> Iterator[str]:
    """Measure how long after its deadline a hanging call among 50 others is over."""
    late = []
    for _ in range(5):
        since = time.monotonic()
        hung = pool.submit(time.sleep, 600, deadline=1.0)
        others = [pool.submit(math.sqrt, 2, deadline=10.0) for _ in range(50)]
        for other in others:
            result(other)
        hung.exception()
        late.append(time.monotonic() - since - 1.0)
    yield f"A call that hangs, deadline 1 s: over {min(late):.2f} to {max(late):.2f} s after its deadline"


def _run(pool: TimedPool, spec: Spec, jobs: list[Any]) -> None:
    calls = [pool.submit(_call, spec, job, deadline=5.0) for job in jobs]
    for call in calls:
        result(call)


def _spent(run: Callable[[], None]) -> float:
    """Return the CPU seconds of this process and of all below it but Ray's daemons."""
    before = _cpu_seconds()
    run()
    time.sleep(0.5)
    after = _cpu_seconds()
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())


def _cpu_seconds() -> dict[int, float]:
    found = {}
    own = psutil.Process()
    for process in [own, *own.children(recursive=True)]:
        try:
            if not any(name in " ".join(process.cmdline()[:3]) for name in DAEMONS):
                times = process.cpu_times()
                found[process.pid] = times.user + times.system
        except psutil.NoSuchProcess:
            pass
    return found


if __name__ == "__main__":
    main()
