"""Launch recipes that run to their end on this machine, with stand-ins for SLURM and ssh alone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from helpers.launch_recipes import RECIPES
from helpers.ray_cluster import arguments
from helpers.runs import ROOT, metric_lines
from helpers.stubs import Stubs

pytestmark = [pytest.mark.nightly, pytest.mark.slow]
BIN = Path(sys.executable).parent
MARK = "VLMRL_TEST_RECIPE"
"""Environment variable of all processes that a recipe starts, by which they are found and ended."""


@contextmanager
def marked() -> Iterator[str]:
    """Inside, processes with this value of `MARK` may run; they are killed after."""
    mark = uuid.uuid4().hex
    try:
        yield mark
    finally:
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == mark:
                    process.kill()


def train(tmp_path: Path, script: str, *machines: str, **variables: str) -> Path:
    """Run a recipe with the commands of this environment; return the run folder.

    `ray stop`, which would end every Ray of this user, is only noted.
    """
    stubs, run = Stubs(tmp_path / "bin"), tmp_path / "run"
    for name in ("srun", "scontrol", "ssh"):
        stubs.add(name)
    stubs.add("ray", f'if [[ $1 == stop ]]; then exit; fi\nexec {BIN}/ray "$@"\n')
    overrides = arguments(run, "run.steps=2")[1:]
    given = [*machines, "--", *overrides] if machines else overrides
    with marked() as mark:
        environment = stubs.environment(**variables, **{MARK: mark, "OMP_NUM_THREADS": "1"})
        environment["RAY_worker_niceness"] = "0"
        environment["PATH"] = f"{stubs.folder}{os.pathsep}{BIN}{os.pathsep}{os.environ['PATH']}"
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *sys.path])
        with (tmp_path / "output").open("wb") as output:
            done = subprocess.run(
                ["bash", str(RECIPES / script), "quickstart", *given],
                cwd=tmp_path,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=900,
            )
    assert done.returncode == 0, (tmp_path / "output").read_text()
    return run


def slurm(nodes: int, gpus: int) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": ",".join(["localhost", "other", "another"][:nodes]),
        "SLURM_NNODES": str(nodes),
        "SLURM_GPUS_ON_NODE": str(gpus),
    }


def free_port() -> str:
    with socket.create_server(("127.0.0.2", 0)) as listener:
        return str(listener.getsockname()[1])


def steps(run: Path) -> list[float]:
    return [line["step"] for line in metric_lines(run)]


def test_slurm_with_torchrun(tmp_path: Path) -> None:
    run = train(tmp_path, "slurm_torchrun.sbatch", **slurm(1, 2))
    assert steps(run) == [1, 2]


@pytest.mark.ray
def test_slurm_with_ray(tmp_path: Path) -> None:
    """Two nodes, one of them a step of its own."""
    where = {"HEAD_ADDRESS": "127.0.0.2", "RAY_PORT": free_port()}
    run = train(tmp_path, "slurm_ray.sbatch", **slurm(2, 1), **where, SPARE_NODES="0")
    assert steps(run) == [1, 2]
    assert len(list((run / "logs/attempt-1").iterdir())) == 2


@pytest.mark.ray
def test_ssh_with_ray(tmp_path: Path) -> None:
    """Three machines, one of them a spare; ssh runs its command here."""
    machines = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
    run = train(tmp_path, "ssh.sh", *machines, GPUS="1", SPARE="1", RAY_PORT=free_port())
    assert steps(run) == [1, 2]
    assert len(list((run / "logs/attempt-1").iterdir())) == 2
    stopped = [call for call in Stubs(tmp_path / "bin").calls("ray") if call == ["stop"]]
    assert len(stopped) == len(machines)
