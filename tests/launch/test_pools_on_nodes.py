"""Graders and servers on the nodes of a Ray cluster: a node that dies costs no verdict and no prompt.

Verdicts through graders are those of the local pool. The servers are small processes that speak our
servers' protocol, not vLLM.
"""

from __future__ import annotations

import operator
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers import stand_in_server
from helpers.ray_cluster import arguments, finish, launched
from helpers.runs import metric_lines
from helpers.small import policy, prompt
from vlmrl.config import RewardConfig, ScoringConfig
from vlmrl.engines.base import Sampling
from vlmrl.engines.vllm_server import VllmServer
from vlmrl.features.launch.graders import RESOURCE, RayPool, pool_maker, start_graders
from vlmrl.features.launch.server_keeper import fleet_of, start_keepers
from vlmrl.schema import Completion, Frame, Parsed, PromptBatch, Sample, Truth
from vlmrl.scoring.scorer import Judged, Scorer
from vlmrl.system.deadline_pool import CallFailed, TooLate, result, was_killed

pytestmark = [pytest.mark.ray, pytest.mark.slow]

MINE = """
import math, time
from dataclasses import dataclass
from vlmrl.schema import Verdict
from vlmrl.scoring.verifier import BatchVerifier, GroupVerifier

def near(answer):
    if answer == "hang":
        while True:
            pass
    if answer == "raise":
        raise ValueError("no number")
    return math.exp(-abs(float(answer)) / 3)

def slow(answer):
    time.sleep(0.1)
    return float(answer) / 100

@dataclass(frozen=True)
class Rank(GroupVerifier):
    def judge(self, completions, sample, rewards):
        known = sorted({r for r in rewards if r is not None})
        return [Verdict(0.0 if r is None else known.index(r) / len(known)) for r in rewards]

@dataclass(frozen=True)
class Share(BatchVerifier):
    def judge(self, groups, samples):
        count = sum(len(group) for group in groups)
        return [[Verdict(1 / count, note=s.id) for _ in group] for group, s in zip(groups, samples)]
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without graders, and a driver; tests add the nodes that they use, and remove them."""
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 100 * 2**20}
    made = Cluster(initialize_head=True, head_node_args=head)
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()


def add_node(cluster: Any, graders: int = 1, workers: int = 2) -> Any:
    store = 100 * 2**20
    room = {RESOURCE: graders * workers}
    return cluster.add_node(num_cpus=0, resources=room, object_store_memory=store)


@pytest.fixture
def graders(cluster: Any) -> Iterator[Any]:
    """Starts graders of two workers, and ends them and the nodes that were added meanwhile."""
    import ray

    before = set(cluster.worker_nodes)
    started: list[Any] = []

    def start(count: int) -> list[Any]:
        started.extend(start_graders(count, 2, "tests"))
        return started

    yield start
    for grader in started:
        ray.kill(grader)
    for node in set(cluster.worker_nodes) - before:
        cluster.remove_node(node)
    while sum(node["Alive"] for node in ray.nodes()) > 1 + len(before):
        time.sleep(0.1)  # else the next test's graders might be placed there


def completion(answer: str) -> Completion:
    parsed = Parsed(answer, None, "none", True, 1.0)
    return Completion(answer, parsed, Frame(100, 100), finish_reason="stop")


def judge(scorer: Scorer, groups: list[list[str]]) -> list[list[Judged]]:
    samples = [Sample(f"row-{p}", "s", ("?",), Truth(number=1.0)) for p in range(len(groups))]
    return scorer.judge([[completion(a) for a in group] for group in groups], samples)


def rewards(folder: Path, *names: str) -> dict[str, list[RewardConfig]]:
    (folder / "mine.py").write_text(MINE)
    path = f"{folder}/mine.py"
    return {"s": [RewardConfig(verifier=f"{path}:{name}", timeout_s=2.0) for name in names]}


def test_verdicts_through_graders_are_those_of_the_local_pool(
    cluster: Any, graders: Any, tmp_path: Path
) -> None:
    add_node(cluster)
    add_node(cluster)
    graders(2)
    by_source = rewards(tmp_path, "near", "Rank", "Share")
    groups = [[f"{p * g / 7}" for g in range(8)] for p in range(20)]
    groups += [["1", "hang", "raise", "2"]]
    scoring = ScoringConfig(fault_limit=1.0)
    with Scorer(by_source, scoring) as local:
        expected, counts = judge(local, groups), local.counts
    with Scorer(by_source, scoring, make_pool=pool_maker(2, "tests")) as remote:
        assert judge(remote, groups) == expected
        assert remote.counts == counts
    hung, raised = expected[-1][1:3]
    assert (
        hung.verdicts["near"].is_kill and raised.verdicts["near"].fault == "ValueError: no number"
    )


def test_a_node_of_graders_that_is_killed_costs_no_verdict(
    cluster: Any, graders: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dying, _ = add_node(cluster), add_node(cluster)
    pools: list[RayPool] = []

    def make_pool(*arguments: Any) -> RayPool:
        pools.append(RayPool(graders(2), *arguments))
        return pools[-1]

    groups = [[f"{10 * p + g}" for g in range(10)] for p in range(10)]
    with Scorer(rewards(tmp_path, "slow"), ScoringConfig(), make_pool=make_pool) as scorer:
        # a grader starts in seconds; one alone would take all calls
        while not all(seat.up for seat in pools[0]._seats):
            time.sleep(0.1)
        scorer.counts.clear()
        calls = [
            scorer._calls.start(c, completion(a), Sample("r", "s", ("?",), Truth(number=1.0)))
            for c in scorer.components(Sample("r", "s", ("?",), Truth(number=1.0)), 0.0, None)
            for group in groups
            for a in group
        ]
        while sum(call.done() for call in calls) < 10:
            time.sleep(0.05)
        cluster.remove_node(dying, allow_graceful=False)
        assert [result(call).score for call in calls] == [n / 100 for n in range(100)]
        assert "a grader was lost: its calls are asked for again elsewhere" in caplog.text
        judged = judge(scorer, groups)
    assert [j.reward for group in judged for j in group] == [n / 100 for n in range(100)]
    assert scorer.counts["s", "slow"] == {"calls": 100, "faults": 0, "skipped": 0, "kills": 0}


def test_a_call_that_hangs_or_ends_its_process_costs_its_own_result(
    cluster: Any, graders: Any
) -> None:
    add_node(cluster)
    pool = RayPool(graders(1), 2)
    endless = pool.submit(time.sleep, 600, deadline=40.0)
    others = [pool.submit(operator.mul, 2, n, deadline=20.0) for n in range(60)]
    assert [result(other) for other in others] == [2 * n for n in range(60)]
    assert result(pool.submit(operator.mul, b"0" * 2**20, 2, deadline=20.0)) == b"0" * 2**21
    assert not endless.done()
    hung, dead = (
        pool.submit(time.sleep, 600, deadline=0.5),
        pool.submit(os._exit, 7, deadline=20.0),
    )
    with pytest.raises(TooLate, match=r"^killed: no result within 0\.5 s$"):
        result(hung)
    with pytest.raises(CallFailed, match=r"^its process died: exit code 7$"):
        result(dead)
    assert was_killed(hung) and was_killed(dead)
    pool.close()
    with pytest.raises(CallFailed, match="cancelled"):
        result(endless)


def test_graders_without_a_place_join_when_a_node_comes(cluster: Any, graders: Any) -> None:
    add_node(cluster)
    pool = RayPool(graders(2), 2)
    assert result(pool.submit(operator.mul, 2, 4, deadline=20.0)) == 8
    assert sum(seat.up for seat in pool._seats) == 1
    add_node(cluster)
    while not all(seat.up for seat in pool._seats):
        time.sleep(0.1)
    assert result(pool.submit(operator.mul, 2, 5, deadline=20.0)) == 10
    pool.close()


def test_a_node_with_a_server_that_is_killed_within_a_step_costs_no_prompt(
    cluster: Any, tmp_path: Path
) -> None:
    import ray

    record = tmp_path / "record"
    record.touch()
    nodes = [add_node(cluster) for _ in range(2)]
    program = [stand_in_server.__file__, "--record", str(record)]
    keepers = start_keepers(2, 0, "tests", program)
    made, draw = policy(), Sampling(n=2, max_tokens=4, seed=3)
    batch = PromptBatch(tuple(prompt(made, n, images=0) for n in range(400)))
    chosen = VllmServer(transfer="tcp", max_model_len=1024, start_timeout_s=120.0)
    engine = chosen.on(fleet_of(2, "tests")).start(made)
    assert len(engine._servers) == 2
    done: list[int] = []

    def finished(number: int, group: object) -> None:
        done.append(number)
        if len(done) == 4:  # its raylet, its keeper and its server
            cluster.remove_node(nodes[0], allow_graceful=False)

    rollouts = engine.generate(batch, draw, finished)
    stand_in_server.require_whole(rollouts, draw, made, version=0)
    assert sorted(done) == list(range(400))

    made.version += 1
    while True:  # the keeper comes to the other node, and its server joins at a sync
        engine.sync(made)
        stand_in_server.require_whole(engine.generate(batch, draw), draw, made, made.version)
        if len(engine._servers) == 2:
            break
        made.version += 1
    versions = {line.split()[1] for line in record.read_text().splitlines()}
    assert "none" not in versions
    engine.close()
    for keeper in keepers:
        ray.kill(keeper)
    cluster.remove_node(nodes[1])


WHERE = """
import os
from pathlib import Path

def where(completion):
    with Path(__file__).with_name("where").open("a") as file:
        file.write(os.environ.get("RAY_RAYLET_PID", "here") + "\\n")
    return len(completion.text) / 100
"""


def test_a_launched_run_with_a_grader_is_that_of_one_process(cluster: Any, tmp_path: Path) -> None:
    store = 100 * 2**20
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=store), add_node(cluster)]
    (tmp_path / "mine.py").write_text(WHERE)
    rewards = f"rewards=[{{verifier: '{tmp_path}/mine.py:where', timeout_s: 20.0}}]"
    given = [arguments(tmp_path / name, "run.steps=2", rewards) for name in ("alone", "launched")]
    subprocess.run([sys.executable, "-m", "vlmrl", "train", *given[0]], check=True)
    here = (tmp_path / "where").read_text().split()
    with launched(cluster, 1, given[1], "cluster.graders=1") as process:
        finish(process)
    there = (tmp_path / "where").read_text().split()[len(here) :]
    assert metric_lines(tmp_path / "launched") == metric_lines(tmp_path / "alone")
    assert len(there) == len(here) and set(here) == {"here"}
    assert len(set(there)) == 1 and there[0].isdecimal()
    for node in nodes:
        cluster.remove_node(node)
