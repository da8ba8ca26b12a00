"""Launch recipes: each comes to the commands that its page promises, through the shells on the way."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from helpers.launch_recipes import (
    RECIPES,
    headers,
    launched,
    parse,
    run,
    slurm,
    stand_ins,
    stop_wait,
    submitted,
)
from helpers.stubs import Stubs

SHELL = sorted([*RECIPES.glob("*.sh"), *RECIPES.glob("*.sbatch")])
MORE = "run.name=a name"
"""An override whose space must survive every shell on the way."""


@pytest.fixture
def stubs(tmp_path: Path) -> Stubs:
    return stand_ins(tmp_path / "bin")


@pytest.mark.parametrize("script", SHELL, ids=lambda path: path.name)
def test_a_script_parses(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_slurm_with_ray(stubs: Stubs) -> None:
    script = "slurm_ray.sbatch"
    run(stubs, str(RECIPES / script), "mine.yaml", MORE, **slurm(script))
    head, *others = stubs.calls("ray")
    assert head[:6] == ["start", "--head", "--node-ip-address", "10.0.0.1", "--port", "6379"]
    assert [call[:3] for call in others] == [["start", "--address", "10.0.0.1:6379"]] * 4
    assert all("--block" in call for call in others)
    steps = stubs.calls("srun")
    assert {call[call.index("--nodelist") + 1] for call in steps} == {"n2", "n3", "n4", "n5"}
    given, settings = launched(stubs)
    assert (given["config"], given["nodes"], given["gpus_per_node"]) == ("mine.yaml", 4, 8)
    assert settings.cluster.address == "10.0.0.1:6379"
    assert (settings.resume.start, settings.run.name) == ("auto", "a name")


def test_slurm_with_ray_refuses_a_loopback_address(stubs: Stubs) -> None:
    stubs.add("hostname", "echo 127.0.1.1\n")
    script = RECIPES / "slurm_ray.sbatch"
    done = stubs.run(["bash", str(script), "mine.yaml"], stubs.folder, slurm(script.name))
    assert done.returncode == 2 and "HEAD_ADDRESS" in done.stderr
    assert stubs.calls("ray") == []


def test_slurm_with_ray_passes_sigterm_on_and_waits(stubs: Stubs) -> None:
    # The stand-in saves for a second after SIGTERM, as a step that is finished does.
    stubs.add(
        "vlmrl",
        "trap 'sleep 1; echo saved; exit 130' TERM\nkill -TERM $PPID\n"
        "for ((i = 0; i < 300; i++)); do sleep 0.1; done\n",
    )
    script = RECIPES / "slurm_ray.sbatch"
    done = stubs.run(["bash", str(script), "mine.yaml"], stubs.folder, slurm(script.name))
    assert done.returncode == 130
    assert done.stdout.splitlines()[-1] == "saved"


def test_slurm_with_torchrun(stubs: Stubs) -> None:
    script = "slurm_torchrun.sbatch"
    stubs.add("torchrun", 'echo "$TORCH_ELASTIC_SHUTDOWN_TIMEOUT"\n')
    done = run(stubs, str(RECIPES / script), "mine.yaml", MORE, **slurm(script))
    lead = int(headers(script)["signal"].partition("@")[2])
    assert 30 < int(done.stdout) < lead
    (call,) = stubs.calls("torchrun")
    own, train = call[: call.index("-m")], call[call.index("-m") + 2 :]
    from torch.distributed.run import get_args_parser

    options = get_args_parser().parse_args([*own, "-m", "vlmrl"])
    assert (options.nnodes, options.nproc_per_node) == ("4", "8")
    assert (options.rdzv_endpoint, options.rdzv_id) == ("n1:29500", "7")
    given, settings = parse(train)
    assert given["config"] == "mine.yaml" and settings.resume.start == "auto"
    assert settings.run.name == "a name"


def test_ssh(stubs: Stubs) -> None:
    machines = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    script = str(RECIPES / "ssh.sh")
    run(stubs, script, "mine.yaml", *machines, "--", MORE, GPUS="2", SPARE="1")
    spoken = [next(a for a in call if a[0].isdigit()) for call in stubs.calls("ssh")]
    # The token to all, start all, launch, stop all.
    assert spoken == [*machines, *machines, "10.0.0.1", *machines]
    started = stubs.calls("ray")[:3]
    assert "--head" in started[0]
    assert [call[call.index("--node-ip-address") + 1] for call in started] == machines
    assert all(call[2] == "10.0.0.1:6379" for call in started[1:])
    assert stubs.calls("ray")[3:] == [["stop"]] * 3
    given, settings = launched(stubs)
    assert (given["config"], given["nodes"], given["gpus_per_node"]) == ("mine.yaml", 2, 2)
    assert settings.cluster.address == "10.0.0.1:6379"
    assert (settings.resume.start, settings.run.name) == ("auto", "a name")


TOKEN = 'echo "$RAY_AUTH_MODE ${RAY_AUTH_TOKEN:-$(cat "$RAY_AUTH_TOKEN_PATH")}"\n'


@pytest.mark.parametrize("script", ["slurm_ray.sbatch", "ssh.sh"])
def test_all_of_a_run_have_one_token_and_the_next_run_another(script: str, stubs: Stubs) -> None:
    for name in ("ray", "vlmrl"):
        stubs.add(name, TOKEN)
    machines = ["10.0.0.1", "10.0.0.2"] if script == "ssh.sh" else []
    said: list[set[str]] = []
    for _ in range(2):
        variables = slurm(script) if script == "slurm_ray.sbatch" else {}
        done = run(stubs, str(RECIPES / script), "mine.yaml", *machines, **variables)
        said.append({line for line in done.stdout.splitlines() if line})
    assert all(len(tokens) == 1 for tokens in said) and said[0] != said[1]
    assert all(re.fullmatch("token [0-9a-f]{64}", *tokens) for tokens in said)
    if script == "ssh.sh":
        assert (stubs.folder.parent / ".ray-token").stat().st_mode & 0o077 == 0


def test_ssh_stops_ray_where_the_run_failed(stubs: Stubs) -> None:
    stubs.add("vlmrl", "exit 3\n")
    command = ["bash", str(RECIPES / "ssh.sh"), "mine.yaml", "10.0.0.1"]
    assert stubs.run(command, stubs.folder, {}).returncode == 3
    assert stubs.calls("ray")[-1] == ["stop"]


def test_ray_job_submit(stubs: Stubs, tmp_path: Path) -> None:
    script, folder = str(RECIPES / "ray_job_submit.sh"), tmp_path / "a folder"
    folder.mkdir()
    stubs.add("vlmrl", "pwd\n")
    run(stubs, script, "http://10.0.0.1:8265", str(folder), "mine.yaml", "4", "8", MORE)
    options = submitted(stubs)
    assert options[options.index("--address") + 1] == "http://10.0.0.1:8265"
    assert stop_wait(json.loads(options[options.index("--runtime-env-json") + 1])) > 3
    given, settings = launched(stubs)
    assert (given["config"], given["nodes"], given["gpus_per_node"]) == ("mine.yaml", 4, 8)
    assert (settings.cluster.address, settings.resume.start) == ("auto", "auto")
    assert settings.run.name == "a name"


def test_skypilot(stubs: Stubs, tmp_path: Path) -> None:
    task = yaml.safe_load((RECIPES / "skypilot.yaml").read_text())
    (tmp_path / "vlmrl-env/bin").mkdir(parents=True)
    (tmp_path / "vlmrl-env/bin/activate").touch()
    template = Stubs(tmp_path / "sky_templates/ray")
    template.add("start_cluster")
    nodes, gpus = task["num_nodes"], task["resources"]["accelerators"].partition(":")[2]
    sky = {
        **task["envs"],
        "HOME": str(tmp_path),
        "SKYPILOT_NUM_NODES": str(nodes),
        "SKYPILOT_NUM_GPUS_PER_NODE": gpus,
        "SKYPILOT_NODE_IPS": "\n".join(f"10.0.0.{i}" for i in range(1, nodes + 1)),
    }
    for rank in reversed(range(nodes)):
        assert stubs.calls("vlmrl") == []
        run(stubs, "-c", task["setup"], **sky)
        run(stubs, "-c", task["run"], **sky, SKYPILOT_NODE_RANK=str(rank))
    assert len(stubs.calls("start_cluster")) == nodes
    given, settings = launched(stubs)
    assert (given["config"], given["nodes"], given["gpus_per_node"]) == ("mine.yaml", 4, 8)
    assert settings.cluster.address == "10.0.0.1:6379" and settings.resume.start == "auto"
    assert str(settings.folder).startswith(next(iter(task["volumes"])))
