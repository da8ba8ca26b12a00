"""Rollouts ahead of the trainer with real vLLM servers: bound, updates in flight, faults, resume."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import psutil
import pytest
import torch

from helpers.rollouts_ahead import (
    TINY,
    ahead_config,
    begin_training,
    ids_of,
    no_thread_is_left,
    trained_ids,
)
from helpers.small import advantages

pytest.importorskip("vllm.version", reason="needs vLLM: make test-vllm")

from vlmrl.assemble import lifecycle
from vlmrl.engines import vllm_server
from vlmrl.forward.packing import pack
from vlmrl.monitoring.run_checks import make_probe_prompts, measure_parity
from vlmrl.system.interrupt import Interrupt

SERVER = (
    "engine={name: vllm_server, options: {enforce_eager: true, max_model_len: 512, "
    "max_num_seqs: 16, kv_cache_gib: 0.125, block_size: 32}}"
)


def config(folder, *more):
    return ahead_config(folder, SERVER, *more)


def spans(rollouts):
    return [c.versions for group in rollouts.completions for c in group]


def test_tokens_are_by_versions_within_the_bound_and_exact(tmp_path, order):
    """Also with an update that arrives while a batch is being written."""
    # Few rows at a time: generation takes longer than an update, on a loaded machine too.
    more = ["rollout.max_tokens=300", "engine.options.max_num_seqs=4"]
    settings = config(tmp_path / "run", "rollout.max_staleness=2", *more)
    with begin_training(settings) as trainer:
        trainer.policy.stop_ids = ()  # long enough to be met by an update
        weights, found = {}, []
        for step in range(4):
            version = trainer.policy.version
            weights[version] = {n: w.clone() for n, w in trainer.policy.weights().items()}
            report = trainer.step()
            found.append(report.rollouts)
            assert ids_of(report.rollouts) == order[step]
            versions = {v for runs in spans(report.rollouts) for v, _ in runs}
            assert versions <= set(range(version - 2, version + 1))
            assert report.metrics["rollout/staleness_max"] == version - min(versions)
        trainer.queue.drain()
        assert (
            measure_parity(
                trainer.engine, trainer.policy, make_probe_prompts(trainer.policy)
            ).max_abs
            < 1e-4
        )
        mixed = [r for r in found if any(len(runs) > 1 for runs in spans(r))]
        assert mixed, "no update came while a completion was being written"
        assert_each_token_is_by_its_version(trainer.policy, mixed[0], weights)


def test_a_streamed_straggler_is_written_over_updates_and_each_token_is_by_its_version(
    tmp_path, order, monkeypatch
):
    """Its group is ten times as long as the others, which are trained on meanwhile."""
    fields_of, check = vllm_server.sampling_fields, vllm_server.check
    asked: list[int] = []

    def lengths(*arguments):
        longest = 150 if len(asked) == 1 else 15
        asked.append(longest)
        return {**fields_of(*arguments), "max_tokens": longest}

    def checked(prompt, answer, policy, sampling, versions):
        whole = replace(sampling, max_tokens=len(answer.group[0].token_ids))
        check(prompt, answer, policy, whole, versions)

    more = ["rollout.max_tokens=150", "engine.options.max_num_seqs=6", "rollout.streaming=true"]
    settings = config(tmp_path / "run", "rollout.max_staleness=1", *more)
    with begin_training(settings) as trainer:
        trainer.policy.stop_ids = ()
        monkeypatch.setattr(vllm_server, "sampling_fields", lengths)
        monkeypatch.setattr(vllm_server, "check", checked)
        weights, trained, late = {}, [], None
        for step in range(settings.run.steps):
            weights[step] = {n: w.clone() for n, w in trainer.policy.weights().items()}
            report = trainer.step()
            trained += ids_of(report.rollouts)
            for row, group in enumerate(report.rollouts.completions):
                if group[0].num_tokens == 150:
                    late = step, row, report
        assert late is not None
        step, row, report = late
        rollouts, mixed = report.rollouts, report.rollouts.completions[row]
        assert step > 0 and all(len(c.versions) > 1 for c in mixed)
        assert_each_token_is_by_its_version(trainer.policy, rollouts, weights)
        old = [sum(n for v, n in c.versions if v < step - 1) for c in mixed]
        if any(old):
            weight = report.advantages.extra["token_weight"][row]
            assert [(150 - n) for n in old] == weight.sum(-1).tolist()
    assert sorted(trained) == sorted(name for ids in order[: settings.run.steps] for name in ids)


def assert_each_token_is_by_its_version(policy, rollouts, weights):
    (batch,) = pack(rollouts, advantages(rollouts), updates=1, micro_tokens=10**6, max_tokens=300)
    (micro,) = batch.micro
    scores = {}
    for version in {v for runs in spans(rollouts) for v, _ in runs}:
        policy.base.load_state_dict(weights[version])
        with torch.no_grad():
            scores[version] = policy.logprobs(micro)[0]
    for row, runs in enumerate(spans(rollouts)):
        start = 0
        for version, count in runs:
            part = slice(start, start + count)
            gap = scores[version][row, part] - micro.sampling_logprobs[row, part]
            assert gap.abs().max() < 2e-4
            start += count


@pytest.mark.nightly
def test_a_killed_server_and_a_resumed_run_lose_and_repeat_no_prompt(tmp_path, order):
    folder = tmp_path / "run"
    more = ["rollout.max_staleness=2", "run.save_every=2", "rollout.max_tokens=60", "resume=auto"]

    class AfterThree(Interrupt):
        looks = 0

        @property
        def asked(self):
            self.looks += 1
            return self.looks >= 3

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lifecycle, "Interrupt", AfterThree)
        assert not lifecycle.train(config(folder, *more))["finished"]
    assert no_thread_is_left()
    killed = []
    killer = threading.Thread(target=kill_a_server, args=(folder, killed))
    killer.start()
    assert lifecycle.train(config(folder, *more))["finished"]
    killer.join()
    assert killed
    assert trained_ids(folder) == order[:6]
    lines = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 7))
    assert all(line["rollout/staleness_max"] <= 2 for line in lines)
    assert no_thread_is_left()
    assert not [
        p for p in psutil.Process().children(True) if "engines.serve" in " ".join(p.cmdline())
    ]


def kill_a_server(folder, killed):
    """Once the run goes on, the server's process group loses one process."""
    chance = random.Random(os.getpid())
    while len((folder / "metrics.jsonl").read_text().splitlines()) < 4:
        time.sleep(0.05)
    children = psutil.Process().children(recursive=True)
    servers = [p for p in children if "engines.serve" in " ".join(p.cmdline())]
    killed.append(chance.choice([*servers, *servers[0].children(recursive=True)]))
    killed[-1].kill()


def test_a_run_that_is_told_to_stop_at_once_leaves_no_process_behind(tmp_path):
    folder = tmp_path / "run"
    arguments = [f"run.dir={folder}", *TINY, SERVER, "rollout.max_staleness=2", "run.steps=1000"]
    trainer = subprocess.Popen(
        [sys.executable, "-m", "vlmrl", "train", "quickstart", *arguments, "run.save_every=1000"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not (folder / "metrics.jsonl").exists():
        assert trainer.poll() is None
        time.sleep(0.1)
    family = psutil.Process(trainer.pid).children(recursive=True)
    assert any("engines.serve" in " ".join(p.cmdline()) for p in family)
    for _ in range(2):  # the first asks for a stop after the step
        trainer.send_signal(signal.SIGTERM)
        time.sleep(0.2)
    trainer.wait(60)
    assert not psutil.wait_procs(family, timeout=15)[1]
