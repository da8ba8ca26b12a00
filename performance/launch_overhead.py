"""What Ray takes of a launched run: CPU of driver and actors, and of Ray's threads in the ranks.

`python performance/launch_overhead.py` in an environment with Ray (`make venv-ray`), on Linux. A quickstart
of two ranks and a grader, so that the ranks join Ray, is launched on a Ray of this machine and read from
/proc till its end. Driver and actors work by the clock, ranks by their steps: with other work on the machine
the share is larger, so the table has the seconds a minute, too.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

RUN = ["run.report=false", "run.save_every=10", "scoring.workers=1", "cluster.graders=1"]
REWARDS = "rewards=[{verifier: box_iou, timeout_s: 20}, {verifier: format, weight: 0.1}]"
OWN_THREADS = ("python", "pt_", "gloo")
"""How the names of threads begin that a rank has without Ray: Python's and torch's."""
DAEMONS = ("raylet", "gcs_server", "ray/dashboard", "ray::DashboardAgent", "ray::RuntimeEnvAgent",
           "log_monitor", "monitor.py", "ray.util.client")  # fmt: skip
DRIVER, ACTORS, THREADS = "driver", "actors of the ranks", "Ray's threads in the ranks"
RANKS, GRADER, DAEMON = "ranks, all else", "grader and its processes", "Ray's daemons"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--cold-start", type=int, default=500)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lengths = [f"run.steps={arguments.steps}", f"sft.max_steps={arguments.cold_start}"]
        own = [f"run.dir={folder}/run", "run.threads=1", *RUN, REWARDS, *lengths]
        command = [sys.executable, "-m", "vlmrl", "launch", "quickstart", *own]
        begun = time.monotonic()
        launch = psutil.Popen([*command, "--gpus-per-node", "2"], stdout=subprocess.DEVNULL)
        spent: dict[tuple[int, str], float] = {}
        while launch.poll() is None:
            look(launch, spent)
            time.sleep(0.5)
        minutes = (time.monotonic() - begun) / 60
        assert launch.returncode == 0, "the launch failed"
    print_table(spent, minutes)


def look(launch: psutil.Process, spent: dict[tuple[int, str], float]) -> None:
    """Note the CPU seconds so far of each process, by what it is for."""
    try:
        family = [launch, *launch.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in family:
        try:
            times, kind = process.cpu_times(), kind_of(process, launch)
            seconds = times.user + times.system
            if kind == RANKS:
                ours = threads_of_ray(process)
                spent[process.pid, THREADS] = ours
                seconds -= ours
        except (psutil.Error, OSError):
            continue  # it ended
        spent[process.pid, kind] = seconds


def kind_of(process: psutil.Process, launch: psutil.Process) -> str:
    """Return what a process is for."""
    line = " ".join(process.cmdline())
    if process.pid == launch.pid:
        return DRIVER
    if "ray::RankActor" in line:
        return ACTORS
    if any(name in line for name in DAEMONS):
        return DAEMON
    above = [line, *(" ".join(parent.cmdline()) for parent in process.parents())]
    return RANKS if any("-m vlmrl train" in one for one in above) else GRADER


def threads_of_ray(process: psutil.Process) -> float:
    """Return the CPU seconds of the threads of a rank that have neither Python's name nor torch's."""
    found = 0.0
    for thread in process.threads():
        name = Path(f"/proc/{process.pid}/task/{thread.id}/comm").read_text()
        if not name.startswith(OWN_THREADS):
            found += thread.user_time + thread.system_time
    return found


def print_table(spent: dict[tuple[int, str], float], minutes: float) -> None:
    """Print the CPU seconds of each kind, and the share of Ray in those of the ranks."""
    total: Counter[str] = Counter()
    for (_, kind), seconds in spent.items():
        total[kind] += seconds  # type: ignore[assignment]
    print(f"| a launch of {minutes:.1f} minutes | CPU s | a minute |")
    print("|---|---|---|")
    for kind in (DRIVER, ACTORS, THREADS, RANKS, GRADER, DAEMON):
        print(f"| {kind} | {total[kind]:.1f} | {total[kind] / minutes:.2f} |")
    ray = total[DRIVER] + total[ACTORS] + total[THREADS]
    print(f"\nDriver, actors and threads: {ray / total[RANKS]:.1%} of the ranks' own CPU")


if __name__ == "__main__":
    main()
