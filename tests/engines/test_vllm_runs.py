"""Whole runs of `vlmrl train` through the vLLM engines: they learn, bear kills, leave nothing behind."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("vllm.version", reason="needs vLLM: make test-vllm")

OPTIONS = (
    "engine.options={enforce_eager: true, max_model_len: 512, block_size: 32, kv_cache_gib: 0.25}"
)
QUIET = ["run.threads=1", "run.report=false", "tracking.tensorboard=false"]
TINY = [
    *QUIET,
    "sft=null",
    "run.rollouts_every=1",
    "rollout.prompts=2",
    "rollout.group_size=2",
    "rollout.max_tokens=4",
    "evaluation=null",
    "checks.media_ablation_every=0",
]


def train(folder, *overrides):
    """The process of `vlmrl train quickstart`; its words go to `folder`.log."""
    command = [sys.executable, "-m", "vlmrl", "train", "quickstart", f"run.dir={folder}"]
    with Path(f"{folder}.log").open("w") as log:
        return subprocess.Popen([*command, *overrides], stdout=log, stderr=subprocess.STDOUT)


def trained(folder, *overrides):
    """The folder of a run that ended well."""
    process = train(folder, *overrides)
    assert process.wait(900) == 0, words(folder)
    return folder


def words(folder):
    return Path(f"{folder}.log").read_text()


def metrics(folder):
    path = folder / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def wait_for_steps(folder, process, count):
    while len(metrics(folder)) < count:
        assert process.poll() is None, words(folder)
        time.sleep(0.05)


def family_of(process):
    return psutil.Process(process.pid).children(recursive=True)


def servers_of(process):
    """The server and its engine: not the workers of verifiers, and not Python's own helper."""
    servers = [p for p in family_of(process) if "vlmrl.engines.serve" in " ".join(p.cmdline())]
    family = {q for server in servers for q in (server, *server.children(recursive=True))}
    vital = [p for p in family if "resource_tracker" not in " ".join(p.cmdline())]
    return sorted(vital, key=lambda p: p.pid)


# --------------------------------------------------------------------------------------- learning


@pytest.fixture(scope="module")
def cold_started(tmp_path_factory):
    """The quickstart's model after 300 steps of cold start, as a checkpoint.

    The quickstart stops by a metric of 96 scenes, at 200 to 300 steps; what twenty steps teach hangs on that.
    """
    folder = tmp_path_factory.mktemp("cold") / "run"
    steps = ["sft.max_steps=300", "sft.stop_at=null", "run.steps=0"]
    trained(folder, *QUIET, *steps, "evaluation.limit=1", "checks.media_ablation_every=0")
    (found,) = (folder / "checkpoints").glob("sft-*")
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("engine", [["hf"], ["vllm", OPTIONS], ["vllm_server", OPTIONS]])
def test_twenty_steps_of_the_quickstart_pass_the_same_bar(engine, cold_started, tmp_path):
    name, *options = engine
    more = [*QUIET, "run.steps=20", "evaluation.limit=200", "evaluation.every=100"]
    more += [f"resume={cold_started}", f"engine.name={name}", *options]
    summary = json.loads((trained(tmp_path / "run", *more) / "summary.json").read_text())
    before, after = (
        summary[f"{which}_evaluation"]["metrics"]["box_iou"] for which in ("first", "last")
    )
    # Measured from 0.475: hf 0.582, vllm 0.577, vllm_server 0.577; standard error 0.013.
    assert before < 0.51
    assert after > max(0.55, before + 0.05)


# ------------------------------------------------------------------------------------------ faults


def drawn(folder, steps):
    """Sample ids of every step, in order, with how many completions each had."""
    found = []
    for step in range(1, steps + 1):
        lines = (folder / "rollouts" / f"step-{step}.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        found.append([(row["id"], len(row["completions"])) for row in rows])
    return found


LUCK = '''
from dataclasses import dataclass

from vlmrl.schema import Verdict
from vlmrl.scoring.verifier import Verifier


@dataclass(frozen=True)
class Luck(Verifier):
    """Pays random words, so that every step changes the weights."""

    def __call__(self, completion, sample):
        return Verdict(sum(completion.token_ids) % 8 / 7)
'''


@pytest.mark.parametrize(
    ("steps", "kills"), [(12, 1), pytest.param(200, 5, marks=pytest.mark.nightly)]
)
def test_a_run_whose_server_is_killed_trains_every_prompt_once(steps, kills, tmp_path):
    (tmp_path / "luck.py").write_text(LUCK)
    more = [*TINY, f"run.steps={steps}", f"rewards=[{tmp_path}/luck.py:Luck]"]
    undisturbed = drawn(trained(tmp_path / "hf", *more), steps)
    chance = random.Random(0)
    moments = sorted(chance.sample(range(1, steps * 3 // 4), kills))
    folder = tmp_path / "run"
    process = train(folder, *more, "engine.name=vllm_server", OPTIONS)
    for moment in moments:
        wait_for_steps(folder, process, moment)
        time.sleep(chance.uniform(0, 0.1))
        chance.choice(servers_of(process)).kill()
    assert process.wait(900) == 0, words(folder)
    assert drawn(folder, steps) == undisturbed
    lines = metrics(folder)
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    assert sum(line["update/grad_norm"] > 0 for line in lines) > steps / 2
    # Weights older than the policy's would show here.
    assert max(line["rollout/logprob_gap"] for line in lines) < 1e-5
    assert words(folder).count("server") >= kills


@pytest.mark.parametrize(
    "signals",
    [
        [signal.SIGINT],
        pytest.param([signal.SIGTERM], marks=pytest.mark.nightly),
        pytest.param([signal.SIGINT, signal.SIGINT], marks=pytest.mark.nightly),
    ],
    ids=["Ctrl-C", "SIGTERM", "Ctrl-C twice"],
)
def test_no_server_outlives_a_run_that_is_told_to_stop(signals, tmp_path):
    folder = tmp_path / "run"
    longer = ["run.steps=100000", "rollout.max_tokens=200", "rollout.group_size=16"]
    process = train(folder, *TINY, *longer, "engine.name=vllm_server", OPTIONS)
    wait_for_steps(folder, process, 2)
    family = family_of(process)
    assert family
    for number in signals:
        process.send_signal(number)
        time.sleep(0.1)
    assert process.wait(900) == 130, words(folder)
    assert not psutil.wait_procs(family, timeout=60)[1]
    if len(signals) == 1:  # it ended the step, and saved
        last = len(metrics(folder))
        assert (folder / "checkpoints" / f"step-{last}").is_dir()


# ------------------------------------------------------------------------------------- the checks

STALE = '''
from vlmrl.engines.vllm import Vllm


class Stale(Vllm):
    """Keeps its prefix cache when new weights come."""

    def start(self, policy):
        running = super().start(policy)
        take = running.sync

        def sync(policy):
            running._llm.llm_engine.reset_prefix_cache = lambda: True
            take(policy)

        running.sync = sync
        return running
'''


def test_a_run_whose_engine_keeps_a_stale_prefix_cache_stops(tmp_path):
    (tmp_path / "stale.py").write_text(STALE)
    (tmp_path / "luck.py").write_text(LUCK)
    more = [*TINY, "run.steps=3", "optimizer.warmup_steps=0", f"rewards=[{tmp_path}/luck.py:Luck]"]
    folder = tmp_path / "run"
    process = train(folder, *more, f"engine.name={tmp_path}/stale.py:Stale", OPTIONS)
    assert process.wait(900) == 2, words(folder)
    assert "parity after 1 steps: the engine's log-probs are not the trainer's" in words(folder)


@pytest.mark.parametrize("engine", ["vllm", pytest.param("vllm_server", marks=pytest.mark.nightly)])
def test_the_doctor_passes_the_quickstart_on(engine, tmp_path):
    command = [sys.executable, "-m", "vlmrl", "doctor", "quickstart", "run.threads=1"]
    command += [
        "evaluation.limit=8",
        "checks.media_ablation_prompts=4",
        f"engine.name={engine}",
        OPTIONS,
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert {line.split()[0] for line in lines} == {"ok"}
    assert any(line.split()[1] == "sync" and "before the sync" in line for line in lines)
    assert not os.listdir(tmp_path)
