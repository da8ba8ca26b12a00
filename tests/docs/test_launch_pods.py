"""Launch recipes on Kubernetes, and the image: room for what is launched, time for a save, versions."""

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
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from helpers.launch_recipes import RECIPES, ROOT, launched, run, stand_ins, stop_wait, submitted
from vlmrl.features.check.doctor_bench import version_bounds
from vlmrl.features.launch.graders import RESOURCE

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MODULE = PROJECT["name"].replace("-", "_")

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


def test_kuberay_has_room_for_what_it_launches(tmp_path: Path) -> None:
    stubs = stand_ins(tmp_path / "bin")
    # As KubeRay does: the entrypoint is a piece of a shell's text on the pod that submits it.
    submit = shlex.join(["ray", "job", "submit", "--address", "http://head:8265", "--no-wait"])
    entrypoint = RAY_JOB["spec"]["entrypoint"].replace("--chdir=/shared/work", "--chdir=.")
    run(stubs, "-c", f"{submit} -- {entrypoint} ;")
    submitted(stubs)
    given, settings = launched(stubs)
    gpu, graders = GROUPS["gpu"], GROUPS["graders"]
    assert given["nodes"] <= gpu["replicas"] == gpu["minReplicas"] == gpu["maxReplicas"]
    assert given["gpus_per_node"] == limit(gpu, "nvidia.com/gpu") <= limit(gpu, "cpu")
    assert (settings.cluster.address, settings.resume.start) == ("auto", "auto")

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
    """What the lines `pip install` of a file ask for; `.` and our wheel are vlmrl."""
    for line in re.findall(r"pip install (.*)", text):
        for word in shlex.split(line):
            if not word.startswith("-"):
                yield Requirement(re.sub(r"^\.(/\S+\.whl)?", "vlmrl", word))


@pytest.mark.parametrize("name", ["Dockerfile", "skypilot.yaml"])
def test_what_is_installed_is_what_the_project_allows(name: str) -> None:
    asked = {found.name: found for found in installed((RECIPES / name).read_text())}
    assert asked.keys() == {"vlmrl", "ray"}
    assert asked["vlmrl"].extras <= PROJECT["optional-dependencies"].keys()
    assert {"ray", "vllm"} <= asked["vlmrl"].extras
    wheels = re.findall(r"(\S+\.whl)", (RECIPES / name).read_text())
    assert set(wheels) <= {f"'./{MODULE}-{PROJECT['version']}-py3-none-any.whl"}


def test_the_doctor_and_the_readme_call_tested_what_the_project_allows() -> None:
    stated = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["vllm"]]
    asked = {requirement.name: requirement.specifier for requirement in map(Requirement, stated)}
    bounds = {name: version_bounds()[name] for name in ("transformers", "vllm")}
    assert bounds == {name: asked[name] for name in bounds}
    said = {}
    for name, bound in bounds.items():
        least, above = (
            Version(text.strip("<>=")) for text in sorted(map(str, bound), reverse=True)
        )
        minors = dict.fromkeys((least.minor, above.minor - 1))
        said[name] = " to ".join(f"{least.major}.{minor}" for minor in minors)
    line = f"It allows transformers {said['transformers']} and vLLM {said['vllm']}, with which the tests ran"
    assert line in (ROOT / "README.md").read_text()


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
    rooms = ["vlmrl", "rewards", "datasets", "benchmarks", "configs"]
    tracked = subprocess.run(
        ["git", "ls-files", *rooms, "tests/contracts", "tests/helpers"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert packed == {p if p.startswith("vlmrl/") else f"vlmrl/{p}" for p in tracked}
