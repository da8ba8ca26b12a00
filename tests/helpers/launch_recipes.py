"""The launch recipes of docs/scale/launch, run as SLURM, Ray, KubeRay and SkyPilot would run them."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import typer

from helpers.stubs import Stubs
from vlmrl import config
from vlmrl.cli.app import app

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "docs/scale/launch"


def stand_ins(folder: Path) -> Stubs:
    """Return stand-ins in a new folder for all that the recipes call."""
    made = Stubs(folder)
    for name in ("ray", "vlmrl", "torchrun", "srun", "scontrol", "ssh", "uv"):
        made.add(name)
    made.add("hostname", "echo 10.0.0.1 fe80::1\n")
    return made


def run(stubs: Stubs, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `bash COMMAND` to its successful end, in the folder above the stand-ins."""
    done = stubs.run(["bash", *command], stubs.folder.parent, variables)
    assert done.returncode == 0, done.stderr
    return done


def headers(script: str) -> dict[str, str]:
    """Return the `#SBATCH` options of a script: name -> value ("" without)."""
    text = (RECIPES / script).read_text()
    return dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", text, re.MULTILINE))


def slurm(script: str) -> dict[str, str]:
    """Return the variables that SLURM sets for a script, by its options."""
    given = headers(script)
    nodes = int(given["nodes"])
    return {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": ",".join(f"n{i}" for i in range(1, nodes + 1)),
        "SLURM_NNODES": str(nodes),
        "SLURM_GPUS_ON_NODE": given["gpus-per-node"],
    }


def parse(arguments: list[str]) -> tuple[dict[str, Any], config.Config]:
    """Return what our own command line takes the arguments of `vlmrl` for, and their config."""
    group: Any = typer.main.get_command(app)
    name, *rest = arguments
    found: dict[str, Any] = group.commands[name].make_context(name, rest).params
    return found, config.load("quickstart", found["overrides"] or [])


def launched(stubs: Stubs) -> tuple[dict[str, Any], config.Config]:
    """Return the one call of `vlmrl launch`."""
    (arguments,) = stubs.calls("vlmrl")
    assert arguments[0] == "launch"
    return parse(arguments)


def submitted(stubs: Stubs) -> list[str]:
    """Run the entrypoint of the one `ray job submit` as Ray does; return the options before it."""
    (call,) = [call for call in stubs.calls("ray") if call[:2] == ["job", "submit"]]
    options, entrypoint = call[: call.index("--")], call[call.index("--") + 1 :]
    run(stubs, "-c", shlex.join(entrypoint))
    return options


def stop_wait(runtime_env: Any) -> int:
    """Return the seconds that Ray gives a job to stop, in its runtime environment."""
    return int(runtime_env["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"])
