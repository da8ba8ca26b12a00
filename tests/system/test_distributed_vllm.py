"""Several processes train with vLLM: one set of servers that all ranks ask, or one engine on each rank."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("vllm.version", reason="needs vLLM: make test-vllm")

ROOT = Path(__file__).parents[2]
OPTIONS = "enforce_eager: true, max_model_len: 512, block_size: 32, kv_cache_gib: 0.25"
SERVER = ["engine.name=vllm_server", f"engine.options={{{OPTIONS}}}"]
COLOCATED = ["engine.name=vllm", f"engine.options={{{OPTIONS}}}"]
MERGED = ["model.lora={rank: 4, alpha: 8}"]
ADAPTER = ["model.lora={rank: 4, alpha: 8}", f"engine.options={{{OPTIONS}, lora: adapter}}"]
TINY = [
    "run.threads=1",
    "run.report=false",
    "tracking.tensorboard=false",
    "sft=null",
    "run.rollouts_every=1",
    "rollout.prompts=4",
    "rollout.group_size=2",
    "rollout.max_tokens=4",
    "evaluation.every=100",
    "optimizer.warmup_steps=0",
    "checks.media_ablation_every=2",
    "checks.media_ablation_prompts=2",
    "checks.parity_every=1",
]

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


DIES = '''
import os
import signal

from vlmrl.system import distributed
from vlmrl.engines.vllm_server import VllmServer


class Dies(VllmServer):
    """Its server is killed before the second update, and before the rollouts after the third."""

    def start(self, policy):
        running = super().start(policy)
        take, write = running.sync, running.generate

        def kill():
            if distributed.is_main():
                os.killpg(running._servers[0].pid, signal.SIGKILL)

        def sync(policy):
            if policy.version == 2:
                kill()
            take(policy)

        def generate(*asked):
            if running._version == 3:
                kill()
            return write(*asked)

        running.sync, running.generate = sync, generate
        return running
'''


def train(folder: Path, *overrides: str, ranks: int = 2) -> subprocess.Popen[bytes]:
    """Start `vlmrl train quickstart` on some ranks; their words go to `folder`.log."""
    luck = folder.parent / "luck.py"
    luck.write_text(LUCK)
    command = [sys.executable]
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += ["-m", "vlmrl", "train", "quickstart", f"run.dir={folder}", *TINY]
    command += [f"rewards=[{luck}:Luck]", "evaluation.metric=Luck", *overrides]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    with Path(f"{folder}.log").open("w") as log:
        return subprocess.Popen(
            command, env=environment, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT
        )


def words(folder: Path) -> str:
    return Path(f"{folder}.log").read_text()


def metrics(folder: Path) -> list[dict[str, float]]:
    path = folder / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def servers_under(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    family = psutil.Process(process.pid).children(recursive=True)
    return [p for p in family if "vlmrl.engines.serve" in p.cmdline()]


def wait_for_steps(folder: Path, process: subprocess.Popen[bytes], count: int) -> None:
    while len(metrics(folder)) < count:
        assert process.poll() is None, words(folder)
        time.sleep(0.05)


def check_steps(folder: Path, count: int) -> None:
    lines = metrics(folder)
    assert [line["step"] for line in lines] == list(range(1, count + 1))
    assert all(line["update/grad_norm"] > 0 for line in lines)
    # Older weights, or logits at another temperature, would show here: on any rank.
    assert max(line["rollout/logprob_gap"] for line in lines) < 1e-5
    assert max(line["parity/max_abs"] for line in lines if "parity/max_abs" in line) < 1e-5
    rollouts = (folder / "rollouts" / f"step-{count}.jsonl").read_text().splitlines()
    assert [len(json.loads(row)["completions"]) for row in rollouts] == [2] * 4


def test_two_sharded_ranks_share_a_server_that_has_the_present_weights(tmp_path):
    folder = tmp_path / "run"
    sharded = ["distributed.strategy=fsdp2", "run.steps=3", "evaluation.limit=3"]
    process = train(folder, *SERVER, *sharded)
    wait_for_steps(folder, process, 1)
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(servers_under(process)) == 1
    assert process.wait(240) == 0, words(folder)
    check_steps(folder, 3)
    assert not psutil.wait_procs(family, timeout=15)[1]


@pytest.mark.nightly
@pytest.mark.parametrize("engine", [SERVER, COLOCATED], ids=["server", "colocated"])
@pytest.mark.parametrize("form", [MERGED, ADAPTER], ids=["merged", "adapter"])
def test_what_an_adapter_learned_on_two_sharded_ranks_arrives_at_every_sync(engine, form, tmp_path):
    folder = tmp_path / "run"
    more = ["distributed.strategy=fsdp2", "run.steps=2", "evaluation.limit=3"]
    process = train(folder, *engine, *form, *more)
    assert process.wait(480) == 0, words(folder)
    check_steps(folder, 2)


@pytest.mark.nightly
def test_two_whole_ranks_go_on_after_a_death_between_steps_and_end_after_one_within(tmp_path):
    folder = tmp_path / "run"
    (tmp_path / "dies.py").write_text(DIES)
    # One held-out row: a rank that evaluates nothing. Evaluations have temperature 1.
    more = ["run.steps=5", "evaluation.limit=1", "rollout.temperature=0.8"]
    process = train(folder, *SERVER, *more, f"engine.name={tmp_path / 'dies.py'}:Dies")
    wait_for_steps(folder, process, 1)
    family = psutil.Process(process.pid).children(recursive=True)
    assert process.wait(240) != 0
    assert "continue from the last checkpoint with resume=auto" in words(folder)
    check_steps(folder, 3)
    assert not psutil.wait_procs(family, timeout=15)[1]


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_two_ranks_generate_ahead_while_updates_arrive(tmp_path, strategy):
    folder = tmp_path / "run"
    more = ["rollout.max_staleness=2", "rollout.max_tokens=60", "engine.options.max_num_seqs=4"]
    process = train(folder, *SERVER, *more, f"distributed.strategy={strategy}", "run.steps=6")
    assert process.wait(400) == 0, words(folder)
    lines = metrics(folder)
    assert [line["step"] for line in lines] == list(range(1, 7))
    ages = [line["rollout/staleness_max"] for line in lines]
    assert max(ages) == 2 and all(age <= 2 for age in ages)
    assert max(line["parity/max_abs"] for line in lines if "parity/max_abs" in line) < 1e-5


# ------------------------------------------------------------------------------ an engine on each rank


def drawn(folder: Path, step: int) -> list[tuple[str, list[str]]]:
    """What was asked and answered in a step."""
    rows = (folder / "rollouts" / f"step-{step}.jsonl").read_text().splitlines()
    return [(row["id"], [c["text"] for c in row["completions"]]) for row in map(json.loads, rows)]


def trained(folder: Path, *overrides: str, ranks: int = 2) -> None:
    """Let ranks train to an end that leaves no process behind."""
    process = train(folder, *COLOCATED, "evaluation.limit=3", *overrides, ranks=ranks)
    wait_for_steps(folder, process, 1)
    family = psutil.Process(process.pid).children(recursive=True)
    assert process.wait(480) == 0, words(folder)
    assert not psutil.wait_procs(family, timeout=15)[1]


@pytest.mark.nightly
def test_ranks_with_an_engine_each_hold_the_present_weights_whatever_the_strategy(tmp_path):
    folder = tmp_path / "run"
    trained(folder, "distributed.strategy=fsdp2", "run.steps=2")
    trained(folder, "distributed.strategy=ddp", "run.steps=4", "resume=auto")
    check_steps(folder, 4)


@pytest.mark.nightly
@pytest.mark.parametrize("form", [[], ADAPTER], ids=["full", "adapter"])
def test_two_ranks_then_one_then_two_draw_what_one_draws(form, tmp_path):
    folder, alone = tmp_path / "run", tmp_path / "alone"
    trained(folder, *form, "distributed.strategy=fsdp2", "run.steps=2")
    trained(folder, *form, "run.steps=3", "resume=auto", ranks=1)
    trained(folder, *form, "distributed.strategy=ddp", "run.steps=5", "resume=auto")
    check_steps(folder, 5)
    trained(alone, *form, "run.steps=5", ranks=1)
    for step in range(1, 6):
        assert drawn(folder, step) == drawn(alone, step)


@pytest.mark.nightly
def test_ctrl_c_ends_and_saves_the_step_of_ranks_with_an_engine_each(tmp_path):
    folder = tmp_path / "run"
    process = train(folder, *COLOCATED, "evaluation.limit=1", "run.steps=100000")
    wait_for_steps(folder, process, 2)
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    assert process.wait(120) != 0
    assert not psutil.wait_procs(family, timeout=15)[1]
    last = len(metrics(folder))
    assert (folder / "checkpoints" / f"step-{last}").is_dir()


# ---------------------------------------------------------------------------------- every combination

ENGINES = {
    "hf": [],
    "vllm": COLOCATED,
    "server": SERVER,
    "ahead": [*SERVER, "rollout.max_staleness=2"],
}
FORMS = {"full": [], "merged": ["model.lora={rank: 4, alpha: 8}"], "adapter": ADAPTER}


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("engine", ENGINES)
def test_two_ranks_of_every_kind_sample_from_the_weights_they_train(
    tmp_path, engine, form, strategy
):
    if engine == "hf" and form == "adapter":
        pytest.skip("hf has the policy's own adapter, as in the form `merged`")
    folder = tmp_path / "run"
    more = [*ENGINES[engine], *FORMS[form], f"distributed.strategy={strategy}", "run.steps=4"]
    process = train(folder, *more, "evaluation.limit=3")
    assert process.wait(580) == 0, words(folder)
    lines = metrics(folder)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert all(line["update/grad_norm"] > 0 for line in lines)
    if engine != "ahead":  # there, tokens are older than the weights that train on them
        assert max(line["rollout/logprob_gap"] for line in lines) < 1e-5
    if engine != "hf":  # which has no weights of its own to compare
        assert max(line["parity/max_abs"] for line in lines if "parity/max_abs" in line) < 1e-5
