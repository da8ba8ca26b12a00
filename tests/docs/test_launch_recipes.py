"""Launch recipes: each comes to the commands that its page promises, and names what exists."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from helpers.stubs import Stubs
from vlmrl import config
from vlmrl.cli.app import app
from vlmrl.cluster.grader_pool import RESOURCE

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "docs/scale/launch"
SHELL = sorted([*RECIPES.glob("*.sh"), *RECIPES.glob("*.sbatch")])
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MORE = "run.name=a name"
"""An override whose space must survive every shell on the way."""


@pytest.fixture
def stubs(tmp_path: Path) -> Stubs:
    made = Stubs(tmp_path / "bin")
    for name in ("ray", "vlmrl", "torchrun", "srun", "scontrol", "ssh", "uv"):
        made.add(name)
    made.add("hostname", "echo 10.0.0.1 fe80::1\n")
    return made


def run(stubs: Stubs, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    done = stubs.run(["bash", *command], stubs.folder.parent, variables)
    assert done.returncode == 0, done.stderr
    return done


def headers(script: str) -> dict[str, str]:
    """The `#SBATCH` options of a script: name -> value ("" without)."""
    text = (RECIPES / script).read_text()
    return dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", text, re.MULTILINE))


def slurm(script: str) -> dict[str, str]:
    """The variables that SLURM sets for a script, by its options."""
    given = headers(script)
    nodes = int(given["nodes"])
    return {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": ",".join(f"n{i}" for i in range(1, nodes + 1)),
        "SLURM_NNODES": str(nodes),
        "SLURM_GPUS_ON_NODE": given["gpus-per-node"],
    }


def parse(arguments: list[str]) -> tuple[dict[str, Any], config.Config]:
    """What our own command line takes the arguments of `vlmrl` for, and their config."""
    group: Any = typer.main.get_command(app)
    name, *rest = arguments
    found: dict[str, Any] = group.commands[name].make_context(name, rest).params
    return found, config.load("quickstart", found["overrides"] or [])


def launched(stubs: Stubs) -> tuple[dict[str, Any], config.Config]:
    """The one call of `vlmrl launch`."""
    (arguments,) = stubs.calls("vlmrl")
    assert arguments[0] == "launch"
    return parse(arguments)


# ------------------------------------------------------------------------------------ what they run


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
    assert (settings.resume, settings.run.name) == ("auto", "a name")


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
    assert given["config"] == "mine.yaml" and settings.resume == "auto"
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
    assert (settings.resume, settings.run.name) == ("auto", "a name")


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


def submitted(stubs: Stubs) -> list[str]:
    """Run the entrypoint of the one `ray job submit` as Ray does; return the options before it."""
    (call,) = [call for call in stubs.calls("ray") if call[:2] == ["job", "submit"]]
    options, entrypoint = call[: call.index("--")], call[call.index("--") + 1 :]
    run(stubs, "-c", shlex.join(entrypoint))
    return options


def stop_wait(runtime_env: Any) -> int:
    return int(runtime_env["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"])


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
    assert (settings.cluster.address, settings.resume) == ("auto", "auto")
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
    assert settings.cluster.address == "10.0.0.1:6379" and settings.resume == "auto"
    assert str(settings.folder).startswith(next(iter(task["volumes"])))


# -------------------------------------------------------------------------------------- KubeRay


RAY_JOB = yaml.safe_load((RECIPES / "kuberay.yaml").read_text())
CLUSTER = RAY_JOB["spec"]["rayClusterSpec"]
GROUPS = {group["groupName"]: group for group in CLUSTER["workerGroupSpecs"]}


def container(group: dict[str, Any]) -> dict[str, Any]:
    (only,) = group["template"]["spec"]["containers"]
    return dict(only)


def limit(group: dict[str, Any], name: str) -> int:
    resources = container(group)["resources"]
    assert resources["limits"] == resources["requests"]
    return int(resources["limits"].get(name, 0))


def test_kuberay_has_the_keys_of_a_ray_job() -> None:
    """Those of the CRD of KubeRay 1.7, `ray.io_rayjobs.yaml`: an unknown one would be dropped or refused."""
    assert (RAY_JOB["apiVersion"], RAY_JOB["kind"]) == ("ray.io/v1", "RayJob")
    assert RAY_JOB["spec"].keys() == {
        *("entrypoint", "runtimeEnvYAML", "submissionMode", "backoffLimit", "rayClusterSpec"),
        *("shutdownAfterJobFinishes", "ttlSecondsAfterFinished"),
    }
    assert CLUSTER.keys() == {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"}
    assert CLUSTER["headGroupSpec"].keys() == {"rayStartParams", "template"}
    for group in (CLUSTER["headGroupSpec"], *GROUPS.values()):
        scale = (
            {"groupName", "replicas", "minReplicas", "maxReplicas"}
            if group in GROUPS.values()
            else set()
        )
        assert group.keys() == {"rayStartParams", "template"} | scale
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        assert group["template"]["spec"].keys() <= {
            *("terminationGracePeriodSeconds", "securityContext", "containers", "volumes"),
        }
        assert container(group).keys() <= {
            *("name", "image", "env", "lifecycle", "resources", "volumeMounts")
        }
        volumes = {volume["name"] for volume in group["template"]["spec"]["volumes"]}
        assert {mount["name"] for mount in container(group)["volumeMounts"]} == volumes


def test_kuberay_has_room_for_what_it_launches(stubs: Stubs) -> None:
    # As KubeRay does: the entrypoint is a piece of a shell's text on the pod that submits it.
    submit = shlex.join(["ray", "job", "submit", "--address", "http://head:8265", "--no-wait"])
    entrypoint = RAY_JOB["spec"]["entrypoint"].replace("--chdir=/shared/work", "--chdir=.")
    run(stubs, "-c", f"{submit} -- {entrypoint} ;")
    submitted(stubs)
    given, settings = launched(stubs)
    gpu, graders = GROUPS["gpu"], GROUPS["graders"]
    assert given["nodes"] <= gpu["replicas"] == gpu["minReplicas"] == gpu["maxReplicas"]
    assert given["gpus_per_node"] == limit(gpu, "nvidia.com/gpu") <= limit(gpu, "cpu")
    assert (settings.cluster.address, settings.resume) == ("auto", "auto")

    offered = json.loads(json.loads(graders["rayStartParams"]["resources"]))
    assert offered == {RESOURCE: limit(graders, "cpu")}
    workers = settings.scoring.workers
    assert settings.cluster.graders == graders["replicas"] * (offered[RESOURCE] // workers) > 0


def test_kuberay_leaves_time_for_a_save() -> None:
    pods = [CLUSTER["headGroupSpec"], GROUPS["gpu"]]
    for pod in pods:
        (drain,) = container(pod)["env"]
        assert drain["name"] == "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
        assert int(drain["value"]) < pod["template"]["spec"]["terminationGracePeriodSeconds"]
    assert stop_wait(yaml.safe_load(RAY_JOB["spec"]["runtimeEnvYAML"])) == int(drain["value"])


def test_the_hook_of_the_head_asks_the_launcher_alone_and_waits(tmp_path: Path) -> None:
    hook = container(CLUSTER["headGroupSpec"])["lifecycle"]["preStop"]["exec"]["command"]
    mine = tmp_path.name  # this machine may have launchers of others
    hook = [part.replace("[b]in/vlmrl", f"{mine}/[b]in/vlmrl") for part in hook]
    launcher = tmp_path / "bin/vlmrl"
    launcher.parent.mkdir()
    launcher.write_text(
        f"#!{sys.executable}\nimport signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), print('saved'), sys.exit(130)))\n"
        "print('there', flush=True)\ntime.sleep(60)\n"
    )
    launcher.chmod(0o755)
    entry = f"PATH={launcher.parent}:$PATH; env --chdir=/ vlmrl launch mine.yaml; echo $?"
    with subprocess.Popen(["sh", "-c", entry], stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout and shell.stdout.readline() == "there\n"
        subprocess.run(hook, check=True, timeout=30, stdout=subprocess.DEVNULL)
        assert shell.stdout.read() == "saved\n130\n"


# -------------------------------------------------------------------------------- SkyPilot, versions


def test_skypilot_has_the_keys_of_a_task() -> None:
    """Those of SkyPilot's YAML reference, 0.14."""
    task = yaml.safe_load((RECIPES / "skypilot.yaml").read_text())
    assert task.keys() == {
        *(
            "name",
            "num_nodes",
            "workdir",
            "resources",
            "volumes",
            "envs",
            "secrets",
            "setup",
            "run",
        ),
    }
    assert task["resources"].keys() == {"infra", "accelerators", "job_recovery"}


def installed(text: str) -> Iterator[Requirement]:
    """What the lines `pip install` of a file ask for; `.` is vlmrl."""
    for line in re.findall(r"pip install (.*)", text):
        for word in shlex.split(line):
            if not word.startswith("-"):
                yield Requirement(re.sub(r"^\.", "vlmrl", word))


@pytest.mark.parametrize("name", ["Dockerfile", "skypilot.yaml"])
def test_what_is_installed_is_what_the_project_allows(name: str) -> None:
    asked = {found.name: found for found in installed((RECIPES / name).read_text())}
    assert asked.keys() == {"vlmrl", "transformers", "ray"}
    assert asked["vlmrl"].extras <= PROJECT["optional-dependencies"].keys()
    assert {"ray", "vllm"} <= asked["vlmrl"].extras
    tested = re.findall(r"^TESTED := '(.*)'", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert [str(asked["transformers"])] == tested


def test_versions_are_the_projects() -> None:
    (ray,) = [Requirement(text) for text in PROJECT["optional-dependencies"]["ray"]]
    assert ray.specifier.contains(Version(CLUSTER["rayVersion"]))
    images = {container(group)["image"] for group in (CLUSTER["headGroupSpec"], *GROUPS.values())}
    (tag,) = re.findall(r"-t (\S+)", (RECIPES / "Dockerfile").read_text())
    assert images == {tag} and tag.endswith(f":{PROJECT['version']}")
    python = re.findall(r"--python (\S+)", (RECIPES / "skypilot.yaml").read_text())
    assert {f"Programming Language :: Python :: {v}" for v in python} <= {*PROJECT["classifiers"]}


def copied() -> list[str]:
    """What the Dockerfile takes of the checkout."""
    lines = re.findall(r"^COPY (.*)$", (RECIPES / "Dockerfile").read_text(), re.MULTILINE)
    return [source for line in lines for source in line.split()[:-1]]


@pytest.mark.slow
def test_the_image_has_all_files_of_the_package(tmp_path: Path) -> None:
    """A wheel that is built from what the Dockerfile copies, and nothing else."""
    ignored = shutil.ignore_patterns("__pycache__")
    for source in copied():
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, tmp_path / source, ignore=ignored)
        else:
            shutil.copy(ROOT / source, tmp_path / source)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist", "."]
    done = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    tracked = subprocess.run(
        ["git", "ls-files", "vlmrl", "rewards", "datasets", "benchmarks", "configs"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert packed == {p if p.startswith("vlmrl/") else f"vlmrl/{p}" for p in tracked}
