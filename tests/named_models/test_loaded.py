"""A checkpoint that a config names, in a process of its own: its replies, its end, what a stall costs."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from helpers.chat_calls import question, save_small_model
from helpers.rating_models import save_value_head
from helpers.runs import ROOT, TINY, metric_lines
from vlmrl import config
from vlmrl.assemble import lifecycle
from vlmrl.config import NamedModel, PluginRef
from vlmrl.errors import UserError
from vlmrl.features.serve.asked_model import ServedModel as InThisProcess
from vlmrl.features.serve.chat_server import read_request
from vlmrl.media.access import Access
from vlmrl.named_models.asked import keeping_replies, open_model, take_metrics
from vlmrl.scoring.reward_components import resolve
from vlmrl.system.chat_endpoint import Unavailable

HOUSE: dict[str, Any] = {"data": {"train": ["shapes"]}, "evaluation": None}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def replies(tmp_path: Path) -> Iterator[Path]:
    with keeping_replies(tmp_path / "replies"):
        yield tmp_path / "replies"
    assert not servers()


def servers() -> list[psutil.Process]:
    """The processes of checkpoints that this one has started, and that live."""
    found = []
    for child in psutil.Process().children():
        if child.status() != psutil.STATUS_ZOMBIE and "serve" in child.cmdline():
            found.append(child)
    return found


def named(path: Path | str, **more: Any) -> NamedModel:
    return NamedModel(name="grader", path=str(path), timeout_s=120, devices="", **more)


def greedy(**more: Any) -> dict[str, Any]:
    return question(temperature=0, **more)


def expected(folder: Path, body: dict[str, Any]) -> str:
    """The greedy answer of the same checkpoint in this process."""
    asked = InThisProcess(str(folder), PluginRef(name="hf"))
    wanted = read_request(body)
    ((found,),) = asked.answer([asked.prompt(wanted.sample, Access())], wanted.sampling)
    asked.close()
    return found.text


@pytest.mark.slow
def test_it_answers_as_in_this_process_and_leaves_this_ones_random_numbers_alone(
    folder: Path, replies: Path
) -> None:
    model = open_model(named(folder))
    assert not servers()  # nothing is loaded before it is asked
    state = torch.get_rng_state()
    found = model.ask(greedy(), str)
    (process,) = servers()
    assert torch.equal(torch.get_rng_state(), state)
    assert found == expected(folder, greedy())
    assert model.ask(greedy(), str) == found
    sampled = [model.ask(question(seed=seed), str) for seed in (1, 2, 3)]
    assert len(set(sampled)) > 1
    counts = take_metrics()
    assert counts["model/grader/questions"] == 5 and counts["model/grader/requests"] == 4
    assert counts["model/grader/known"] == pytest.approx(0.2)
    assert counts["model/grader/completion_tokens"] > 0
    # A resumed run knows the replies without loading anything.
    with keeping_replies(replies):
        assert not process.is_running()
        assert open_model(named(folder)).ask(greedy(), str) == found
        assert open_model(named(folder)).ask(question(seed=2), str) == sampled[1]
        assert not servers()


@pytest.mark.nightly
def test_a_process_that_is_killed_or_stalls_is_replaced(folder: Path, replies: Path) -> None:
    model = open_model(named(folder, attempts=1))
    first = model.ask(greedy(), str)
    (process,) = servers()
    process.kill()
    process.wait(30)
    assert model.ask(greedy(max_tokens=5), str) == expected(folder, greedy(max_tokens=5))
    (process,) = servers()
    # One that stands still costs its question, and is killed.
    impatient = open_model(named(folder, attempts=1).model_copy(update={"timeout_s": 15.0}))
    impatient.ask(greedy(max_tokens=4), str)
    (other,) = [each for each in servers() if each.pid != process.pid]
    os.kill(other.pid, signal.SIGSTOP)
    with pytest.raises(Unavailable, match="no reply within 15 s"):
        impatient.ask(greedy(max_tokens=3), str)
    end = time.monotonic() + 30
    while len(servers()) > 1 and time.monotonic() < end:
        time.sleep(0.05)
    assert [each.pid for each in servers()] == [process.pid]
    assert impatient.ask(greedy(), str) == first


@pytest.mark.slow
def test_what_cannot_be_loaded_is_said_in_one_line_and_not_tried_again(
    tmp_path: Path, replies: Path
) -> None:
    model = open_model(named(tmp_path / "nowhere"))
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"its process ended: .*nowhere.*no such folder"):
            model.ask(greedy(), str)
    assert take_metrics()["model/grader/failed"] == 1


OWNER = """
import os, signal, sys
from helpers.chat_calls import question
from vlmrl.config import NamedModel
from vlmrl.named_models.asked import open_model

model = open_model(NamedModel(name="grader", path=sys.argv[1], timeout_s=120, devices=""))
model.ask(question(temperature=0), str)
import psutil
print(*[child.pid for child in psutil.Process().children() if "serve" in child.cmdline()], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_the_process_ends_with_an_owner_that_is_killed(folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    command = [sys.executable, "-c", OWNER, str(folder)]
    owner = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert owner.returncode == -signal.SIGKILL
    (pid,) = map(int, owner.stdout.split())
    end = time.monotonic() + 30
    while psutil.pid_exists(pid) and time.monotonic() < end:
        if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            break
        time.sleep(0.1)
    else:
        assert not psutil.pid_exists(pid)


@pytest.mark.slow
def test_two_steps_of_grpo_with_a_reward_model_in_a_process_of_its_own(tmp_path: Path) -> None:
    head = save_value_head(tmp_path / "rm")
    reward = "{verifier: reward_model, options: {model: rm, part: text}}"
    overrides = [
        *TINY, "run.steps=2", "run.rollouts_every=1", "sft=null", "evaluation=null",
        f"models.rm={{path: '{head}', devices: '', timeout_s: 120}}", f"rewards=[{reward}]",
        "checks.media_ablation_every=0", f"run.dir={tmp_path / 'run'}",
    ]  # fmt: skip
    assert lifecycle.train(config.load("quickstart", overrides))["finished"]
    assert not servers()
    scores = set()
    for step in (1, 2):
        for line in (tmp_path / f"run/rollouts/step-{step}.jsonl").read_text().splitlines():
            for one in json.loads(line)["completions"]:
                verdict = one["verdicts"]["reward_model"]
                raw = verdict["parts"].get("raw")
                expected = 0.0 if raw is None else 1 / (1 + math.exp(-raw))
                assert verdict["score"] == pytest.approx(expected)
                scores.add(verdict["score"])
    assert len(scores) > 4
    for line in metric_lines(tmp_path / "run"):
        assert line["model/rm/failed"] == 0 and line["model/rm/prompt_tokens"] > 0


def with_model(model: dict[str, Any], policy: dict[str, Any]) -> config.Config:
    rewards = [{"verifier": "judge", "options": {"model": "grader"}}]
    whole = {**HOUSE, "model": policy, "models": {"grader": model}, "rewards": rewards}
    return config.parse(whole, "my.yaml")


def test_start_is_what_the_policy_starts_from() -> None:
    settings = with_model({"path": "start"}, {"path": "Qwen/Qwen2.5-VL-3B-Instruct"})
    judge: Any = resolve(settings.rewards_of(settings.data.train[0])[0]).verifier
    assert judge.model.path == "Qwen/Qwen2.5-VL-3B-Instruct"
    with pytest.raises(UserError, match=r"models.grader.path: start needs model.path"):
        with_model({"path": "start"}, {"build": {"family": "qwen2_5_vl"}})


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({}, "exactly one of url and path"),
        ({"url": "http://x/v1", "model": "m", "path": "p"}, "exactly one of url and path"),
        ({"url": "http://x/v1"}, "url goes with model"),
        ({"path": "p", "model": "m"}, "path goes without"),
        ({"path": "p", "key_env": "K"}, "key_env goes with url"),
        ({"url": "http://x/v1", "model": "m", "dtype": "bfloat16"}, "dtype goes with path"),
        ({"url": "ftp://x", "model": "m"}, "expected http://"),
    ],
)
def test_a_model_is_served_or_a_checkpoint(model: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        with_model(model, {"path": "somewhere"})
