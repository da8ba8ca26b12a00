"""Ranks that Ray places are those of torchrun to the byte, and a run survives the loss of a node."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from helpers.ray_cluster import (
    FakeCluster,
    arguments,
    finish,
    launched,
    lines_in,
    ranks_under,
    raylet,
    wait_until,
)
from helpers.runs import ROOT, final_state, metric_lines, torchrun
from vlmrl.runs import run_lock

pytestmark = [pytest.mark.ray, pytest.mark.slow]
STEPS = 6
KILLS = int(os.environ.get("VLMRL_NODE_KILLS", "3"))
"""Nodes that are killed at random moments; 20 before a release."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[FakeCluster]:
    cluster = FakeCluster(nodes=3)
    yield cluster
    cluster.close()


def undisturbed(folder: Path, *more: str) -> Path:
    """A run on two ranks of torchrun."""
    given = arguments(folder, f"run.steps={STEPS}", *more)
    done = torchrun("-m", "vlmrl", "train", *given)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def by_torchrun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return undisturbed(tmp_path_factory.mktemp("torchrun") / "run")


def state_of(folder: Path) -> dict[str, object]:
    """The last checkpoint, by file: its bytes, or header and rest where the header has no fixed order."""
    return {
        name: _split(data) if name.endswith(".safetensors") else data
        for name, data in final_state(folder).items()
    }


def _split(data: bytes) -> tuple[object, bytes]:
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def assert_equal_runs(found: Path, expected: Path) -> None:
    assert [line["step"] for line in metric_lines(found)] == list(range(1, STEPS + 1))
    assert metric_lines(found) == metric_lines(expected)
    assert state_of(found) == state_of(expected)


def lose_a_node(cluster: FakeCluster, run: Path, ranks: int) -> str:
    """What a launch prints while a node that it uses is killed and another joins."""
    with launched(cluster, ranks, arguments(run, f"run.steps={STEPS}")) as process:
        wait_until(lambda: lines_in(run) >= 2, process)
        lost = cluster.used()
        cluster.kill(lost)
        cluster.add()
        return finish(process)


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp2", marks=pytest.mark.nightly)])
def test_two_actors_are_two_ranks_of_torchrun(
    strategy: str, cluster: FakeCluster, by_torchrun: Path, tmp_path: Path
) -> None:
    sharded = f"distributed.strategy={strategy}"
    expected = by_torchrun if strategy == "ddp" else undisturbed(tmp_path / "expected", sharded)
    run = tmp_path / "run"
    with launched(cluster, 2, arguments(run, f"run.steps={STEPS}", sharded)) as process:
        said = finish(process)
    assert_equal_runs(run, expected)
    assert "no node has a GPU: the ranks are placed by CPU" in said
    logs = {path.name for path in (run / "logs/attempt-1").iterdir()}
    assert logs == {"rank-0.log", "rank-1.log"}


def test_a_launch_for_programs_passes_on_what_the_first_rank_says(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "vlmrl", "launch", *arguments(run, "run.steps=2")]
    command += ["--nodes", "1", "--gpus-per-node", "2", "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    told = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [one["step"] for one in told if one["kind"] == "step"] == [1, 2]
    assert sum(one["kind"] == "finished" for one in told) == 1 and told[-1]["kind"] == "finished"
    assert "no node has a GPU: the ranks are placed by CPU" in [one.get("text") for one in told]
    logs = run / "logs/attempt-1"
    assert {path.name for path in logs.iterdir()} == {"rank-0.log", "rank-1.log", "events.jsonl"}
    lines = (logs / "events.jsonl").read_text().splitlines()
    assert set(lines) <= set(ran.stdout.splitlines())


def test_a_run_whose_node_is_lost_ends_as_if_it_had_not_been(
    cluster: FakeCluster, by_torchrun: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    said = lose_a_node(cluster, run, ranks=2)
    assert_equal_runs(run, by_torchrun)
    assert "going on from" in said


@pytest.mark.nightly
def test_a_rank_that_lives_on_without_its_node_writes_nothing(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    lose_a_node(cluster, run, ranks=1)
    assert [line["step"] for line in metric_lines(run)] == list(range(1, STEPS + 1))


@pytest.mark.nightly
def test_a_mistake_in_the_config_is_not_tried_again(cluster: FakeCluster, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with launched(cluster, 2, arguments(run, "rollout.prompts=1")) as process:
        said, _ = process.communicate()
    assert process.returncode == 2
    expected = "error: rollout.prompts: expected at least 2, one for each process, got 1"
    assert said.splitlines()[-1] == expected
    assert [path.name for path in (run / "logs").iterdir()] == ["attempt-1"]


@pytest.mark.nightly
def test_the_ranks_of_a_ray_that_is_started_here_have_its_token(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    """Such a Ray refuses who has none, and ranks join it to reach a grader."""
    run = tmp_path / "run"
    own = ["cluster.graders=1", "cluster.address=null"]
    with launched(cluster, 1, arguments(run, "run.steps=2"), *own) as process:
        finish(process)
    assert [line["step"] for line in metric_lines(run)] == [1, 2]


@pytest.mark.nightly
def test_ctrl_c_saves(cluster: FakeCluster, by_torchrun: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with launched(cluster, 2, arguments(run, f"run.steps={STEPS}")) as process:
        wait_until(lambda: lines_in(run) >= 2, process)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate()
        assert process.returncode == 130, said
    assert 2 <= lines_in(run) < STEPS
    with launched(cluster, 2, arguments(run, f"run.steps={STEPS}", "resume=auto")) as process:
        finish(process)
    assert_equal_runs(run, by_torchrun)


@pytest.mark.nightly
def test_a_frozen_node_is_given_up(cluster: FakeCluster, by_torchrun: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    frozen: list[psutil.Process] = []
    with launched(
        cluster, 2, arguments(run, f"run.steps={STEPS}"), "cluster.detect_s=10"
    ) as process:
        wait_until(lambda: lines_in(run) >= 2, process)
        lost = cluster.used()
        try:
            frozen = cluster.freeze(lost)
            cluster.add()
            said = finish(process)
        finally:
            for each in frozen:
                each.kill()
    assert_equal_runs(run, by_torchrun)
    assert "no answer for 1" in said


@pytest.mark.nightly
def test_a_launch_whose_folder_is_lost_with_a_node_goes_on_from_its_mirror(
    cluster: FakeCluster, by_torchrun: Path, tmp_path: Path
) -> None:
    store, lost, fresh = (tmp_path / name for name in ("store", "lost/run", "fresh/run"))
    mirror = [f"run.steps={STEPS}", f"run.mirror=file://{store}"]
    with launched(cluster, 2, arguments(lost, *mirror)) as process:
        wait_until(lambda: list(store.rglob("step-2.*.json")), process)
        cluster.kill(cluster.used())
        process.kill()
    assert not (lost / "summary.json").exists()
    left = [rank for node in cluster.nodes for rank in ranks_under(raylet(node))]
    psutil.wait_procs(left, timeout=60)  # they end with the launcher
    shutil.rmtree(lost.parent)
    cluster.add()
    with launched(cluster, 2, arguments(fresh, *mirror, "resume=auto")) as process:
        said = finish(process)
    assert "of the mirror file://" in said
    assert_equal_runs(fresh, by_torchrun)
    assert "going on from" in (fresh / "logs/attempt-1/rank-0.log").read_text()


@pytest.mark.nightly
def test_a_run_survives_any_number_of_lost_nodes(
    cluster: FakeCluster, by_torchrun: Path, tmp_path: Path
) -> None:
    """At random moments, from the start of the ranks to the last step; prints when it was noticed."""
    chance, tried, hit = random.Random(0), 0, 0
    while hit < KILLS:
        tried += 1
        run, after = tmp_path / f"run-{tried}", chance.randrange(STEPS)
        given = arguments(run, f"run.steps={STEPS}")
        with launched(cluster, 2, given, "cluster.retries=9") as process:
            wait_until(
                lambda run=run, after=after: cluster.used() and lines_in(run) >= after, process
            )
            time.sleep(chance.uniform(0, 0.5 if after else 10))
            used = [node for node in cluster.nodes if ranks_under(raylet(node))]
            if used:  # else the run has come to its end
                cluster.kill(chance.choice(used))
                killed = time.time()
                wait_until(lambda run=run: run_lock.newest_attempt(run) > 1, process)
                noticed = run_lock.owner_path(run).stat().st_mtime - killed
                cluster.add()
            said = finish(process)
        assert_equal_runs(run, by_torchrun)
        if why := [line for line in said.splitlines() if line.startswith("rank ")]:
            hit += 1
            print(f"{hit}: after step {after}, noticed after {noticed:.1f} s: {why[0]}", flush=True)
