"""Groups trained on as they are finished: none waits for a straggler or is lost, old tokens do not count."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import stand_in_server
from helpers.losses import inputs_of
from helpers.rollouts_ahead import (
    HELPERS,
    TINY,
    ahead_config,
    begin_training,
    ids_of,
    no_thread_is_left,
    trained_ids,
)
from helpers.runs import ROOT, metric_lines, torchrun
from helpers.small import policy, prompt
from vlmrl.assemble import lifecycle
from vlmrl.assemble.validate import validate
from vlmrl.engines.serve import PARENT, TOKEN
from vlmrl.engines.vllm_server import VllmServer
from vlmrl.errors import UserError
from vlmrl.policy import checkpoint
from vlmrl.policy.policy import Policy
from vlmrl.schema import PromptBatch
from vlmrl.system.interrupt import Interrupt
from vlmrl.training.rollout_queue import RolloutQueue

STREAMED = ["rollout.max_staleness=1", "rollout.streaming=true"]


def straggling(slow: str, late: int) -> list[str]:
    """The completions of sample `slow` end `late` updates after they began."""
    name = f"engine.name={HELPERS}/copy_engine.py:StragglerEngine"
    return [*STREAMED, name, f"engine.options={{slow: {json.dumps(slow)}, late: {late}}}"]


def flat(batches: list[list[str]]) -> list[str]:
    return sorted(chain(*batches))


# ------------------------------------------------------------------------------- order and bound


def test_no_step_waits_for_a_straggler_whose_old_tokens_have_no_weight(
    tmp_path: Path, order: list[list[str]]
) -> None:
    """It needs three updates to end: whoever waited for it would wait forever."""
    slow, trained, shares = order[0][1], [], []
    with begin_training(ahead_config(tmp_path / "run", *straggling(slow, 3))) as trainer:
        for step in range(6):
            report = trainer.step()
            trained.append(ids_of(report.rollouts))
            shares.append(report.metrics["rollout/too_old"])
            if slow not in trained[-1]:
                continue
            row = trained[-1].index(slow)
            weight, old = report.advantages.extra["token_weight"], 0
            for g, completion in enumerate(report.rollouts.completions[row]):
                assert [v for v, _ in completion.versions][:1] == [0]
                count = completion.versions[0][1]
                assert weight[row, g].tolist() == [
                    float(t >= count) for t in range(len(weight[row, g]))
                ]
                old += count
            assert (weight[[p for p in range(3) if p != row]] == 1).all()
            tokens = sum(c.num_tokens for group in report.rollouts.completions for c in group)
            assert shares[-1] == pytest.approx(old / tokens)
            assert report.metrics["rollout/staleness_max"] == step
            assert report.metrics["rollout/versions"] > 1
    assert slow not in chain(*trained[:3])
    assert flat(trained) == flat(order[:6])
    assert sum(share > 0 for share in shares) == 1
    assert no_thread_is_left()


def test_the_gradient_leaves_out_tokens_that_are_too_old(
    tmp_path: Path, order: list[list[str]]
) -> None:
    """η = 1 and weights of version 3: tokens of version 1 are too old, of version 2 not."""
    runs = ((1, 2), (2, 2), (3, 2))
    with begin_training(ahead_config(tmp_path / "run", *straggling("none", 0))) as trainer:
        trainer.policy.stop_ids = ()  # six tokens each
        trainer.queue.fill(0, 0)
        rollouts = trainer.queue.take()
        groups = tuple(tuple(replace(c, versions=runs) for c in g) for g in rollouts.completions)
        rollouts = replace(rollouts, completions=groups)
        plain = trainer.algorithm.advantages(trainer.scorer.score(rollouts, 0.0), rollouts, 0.0)
        bounded = trainer.queue.within_bound(plain, rollouts, 3)
        assert bounded.metrics["rollout/too_old"] == pytest.approx(2 / 6)
        assert trainer.queue.within_bound(plain, rollouts, 2).extra == plain.extra
        gradients = []
        for advantages in (plain, bounded):
            new = (-torch.rand(3, 6, generator=torch.Generator().manual_seed(1))).requires_grad_()
            extra = {name: table[0] for name, table in advantages.extra.items()}
            mask = torch.ones(3, 6, dtype=torch.bool)
            inputs = inputs_of(new, advantages.values[0][:, None], mask=mask, extra=extra)
            trainer.algorithm.loss(inputs).loss.backward()
            assert new.grad is not None
            gradients.append(new.grad)
    whole, found = gradients
    assert (whole != 0).all()
    assert torch.equal(found[:, 2:], whole[:, 2:]) and (found[:, :2] == 0).all()


@pytest.mark.slow
def test_what_is_finished_in_time_is_trained_on_in_the_loaders_order(
    tmp_path: Path, order: list[list[str]]
) -> None:
    with begin_training(ahead_config(tmp_path / "run", *straggling("none", 0))) as trainer:
        trained = []
        for step in range(6):
            trainer.queue.fill(step, 0)
            trainer.queue.drain()
            report = trainer.step()
            trained.append(ids_of(report.rollouts))
            assert report.metrics["rollout/too_old"] == 0
            assert report.metrics["rollout/staleness_max"] == min(step, 1)
    assert trained == order[:6]


@pytest.mark.slow
def test_dynamic_sampling_takes_further_groups_and_loses_none(
    tmp_path: Path, order: list[list[str]]
) -> None:
    dapo = "algorithm={name: dapo, options: {dynamic_sampling_batches: 2}}"
    sparse = f"rewards=[{HELPERS}/scores.py:sparse]"
    drawn: list[str] = []
    with begin_training(
        ahead_config(tmp_path / "run", *straggling(order[0][1], 2), dapo, sparse)
    ) as trainer:
        take = trainer.queue.take

        def noted() -> Any:
            rollouts = take()
            drawn.extend(ids_of(rollouts))
            return rollouts

        trainer.queue.take = noted  # type: ignore[method-assign]
        for _ in range(6):
            trainer.step()
    batches = len(drawn) // 3
    assert batches > 6
    left = [name for name in flat(order[: batches + 1]) if name not in drawn]
    assert len(left) <= 3 and len(drawn) == 3 * batches


# ------------------------------------------------------------------------------------------ faults


class TextLoader:
    """Prompts without media, three a batch."""

    def __init__(self, made: Policy) -> None:
        self.made, self.drawn = made, 0

    @property
    def state(self) -> dict[str, int]:
        return {"draws": self.drawn}

    def next(self, size: int, progress: float) -> PromptBatch:
        self.drawn += size
        numbers = range(self.drawn - size, self.drawn)
        return PromptBatch(tuple(prompt(self.made, n, images=0) for n in numbers), self.state)


@pytest.fixture
def stalling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Policy, str, Path]]:
    """A policy, the address of a server of it whose first answer waits for a file, and the file."""
    monkeypatch.setenv(TOKEN, "a secret")
    made, hold, served = policy(), tmp_path / "hold", tmp_path / "served"
    made.base.config.save_pretrained(served)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    arguments = ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", "1024"]
    arguments += ["--record", str(tmp_path / "record"), "--hold", str(hold), "--model", str(served)]
    arguments += ["--weight-transfer-config", '{"backend": "vlmrl"}']
    process = subprocess.Popen(
        [sys.executable, stand_in_server.__file__, *arguments],
        env={**os.environ, PARENT: str(os.getpid()), "PYTHONPATH": str(ROOT)},
    )
    yield made, f"http://127.0.0.1:{port}", hold
    process.kill()
    process.wait()


@pytest.mark.slow
def test_a_server_that_stalls_on_a_request_holds_up_no_step_that_can_do_without(
    tmp_path: Path, stalling: tuple[Policy, str, Path]
) -> None:
    made, url, hold = stalling
    engine = VllmServer(urls=[url], transfer="tcp", max_model_len=1024).start(made)
    loader: Any = TextLoader(made)
    queue = RolloutQueue(loader, engine, made, ahead_config(tmp_path / "run", *STREAMED))
    trained: list[str] = []
    begun: dict[str, int] = {}
    for step in range(6):
        if step == 5:
            hold.touch()
        queue.fill(step, 0)
        rollouts = queue.take()
        trained += ids_of(rollouts)
        versions = [group[0].versions for group in rollouts.completions]
        begun |= {
            name: of_group[0][0] for name, of_group in zip(trained[-3:], versions, strict=True)
        }
        made.version += 1
        engine.sync(made)
    queue.close()
    engine.close()
    assert sorted(trained, key=int) == [str(n) for n in range(18)]
    # Any of the first two batches may be the one whose request the server got first.
    assert [begun[name] for name in trained[15:]].count(0) == 1


@pytest.mark.slow
def test_an_error_surfaces_in_a_step_that_lacks_the_group(
    tmp_path: Path, order: list[list[str]]
) -> None:
    poison = f"engine.options.poison={json.dumps(order[2][1])}"
    settings = ahead_config(tmp_path / "run", *straggling("none", 0), poison)
    with begin_training(settings) as trainer, pytest.raises(UserError, match="is refused"):
        for _ in range(6):
            trainer.step()
    assert no_thread_is_left()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["rollout.streaming=true"], "streaming: true needs max_staleness of at least 1, got 0"),
        (
            [*STREAMED, "data.sampler=cdas"],
            "sampler 'cdas' learns from the rewards of whole batches",
        ),
        (
            [*STREAMED, "rollout.group_size={schedule: [[0, 2], [0.5, 3]]}"],
            "rollout.group_size: one that changes needs rollout.streaming false, got true",
        ),
        ([*STREAMED, "engine={name: hf, options: {}}"], "cannot generate while the policy trains"),
    ],
)
def test_what_it_cannot_work_with_is_refused(tmp_path: Path, more: list[str], words: str) -> None:
    with pytest.raises(UserError) as error:
        validate(ahead_config(tmp_path / "run", *more))
    assert words in str(error.value)


# ------------------------------------------------------------------------------------------ resume


def stop_after(steps: int, crash: bool) -> type[Interrupt]:
    class Stop(Interrupt):
        looks = 0

        @property
        def asked(self) -> bool:  # type: ignore[override]
            self.looks += 1
            if crash and self.looks > steps:
                raise MemoryError("crash")
            return self.looks > steps

    return Stop


@pytest.mark.slow
@pytest.mark.parametrize("crash", [False, True])
def test_a_run_that_is_stopped_again_and_again_trains_on_each_prompt_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: list[list[str]], crash: bool
) -> None:
    folder = tmp_path / "run"
    settings = [*straggling(order[1][0], 2), "engine.options.pause=0.02", "run.steps=8"]
    for steps in (1, 2, 0):
        with monkeypatch.context() as patch:
            patch.setattr(lifecycle, "Interrupt", stop_after(steps, crash))
            try:
                done = lifecycle.train(ahead_config(folder, "resume=auto", *settings))
                assert not done["finished"] and not crash
            except MemoryError:
                assert crash
    assert lifecycle.train(ahead_config(folder, "resume=auto", *settings))["finished"]
    assert flat(trained_ids(folder)) == flat(order[:8])
    assert [line["step"] for line in metric_lines(folder)] == list(range(1, 9))
    assert no_thread_is_left()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, order: list[list[str]]) -> Path:
    """The checkpoint after two steps; of the first batch a group is missing, all others are finished."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with begin_training(ahead_config(folder, *straggling(order[0][1], 4))) as trainer:
        for _ in range(2):
            trainer.step()
            while sum(len(pending.groups) for pending in trainer.queue._pending) < 2:
                time.sleep(0.01)
        trainer.save()
    return folder / "checkpoints/step-2"


@pytest.mark.slow
def test_finished_groups_are_trained_on_as_they_were_saved(
    stopped: Path, tmp_path: Path, order: list[list[str]]
) -> None:
    queue = checkpoint.read_queue(stopped)
    assert queue[0]["taken"] == [0, 2] and not queue[0]["groups"]
    saved = {
        tuple(group["sample"]): group["completions"]
        for batch in queue
        for group in batch["groups"].values()
    }
    assert len(saved) == 2
    on = tmp_path / "on"
    settings = straggling(order[0][1], 1)
    lifecycle.train(ahead_config(on, *settings, f"resume={stopped}"))
    before = [
        [order[batch["key"][0]][number] for number in batch.get("taken", ())] for batch in queue
    ]
    assert len(flat(before)) == 6
    assert flat([*before, *trained_ids(on)]) == flat(order[:6])
    texts = {}
    for file in sorted((on / "rollouts").glob("step-*.jsonl")):
        for row in map(json.loads, file.read_text().splitlines()):
            texts[row["source"], row["id"]] = [c["tokens"] for c in row["completions"]]
    for sample, completions in saved.items():
        assert [len(c["token_ids"]) for c in completions] == texts[sample]


@pytest.mark.slow
def test_a_checkpoint_between_batches_is_refused_without_streaming(
    stopped: Path, tmp_path: Path
) -> None:
    settings = ahead_config(tmp_path / "on", "rollout.max_staleness=1", f"resume={stopped}")
    with pytest.raises(UserError, match=r"expected rollout\.streaming true, as in the checkpoint"):
        lifecycle.train(settings)


# ------------------------------------------------------------------------------------------- ranks


@pytest.mark.nightly
def test_two_ranks_take_the_same_groups_and_lose_none(
    tmp_path: Path, order: list[list[str]]
) -> None:
    """The first step is likely to have no group of the second rank."""
    folder = tmp_path / "two"
    more = [f"run.dir={folder}", *TINY, *straggling(order[0][1], 3), "rollout.prompts=2"]
    done = torchrun("-m", "vlmrl", "train", "quickstart", *more)
    assert done.returncode == 0, done.stderr
    trained = trained_ids(folder)
    assert [len(ids) for ids in trained] == [2] * 6
    assert flat(trained) == sorted(list(chain(*order))[:12])
    lines = metric_lines(folder)
    assert sum(line["rollout/too_old"] > 0 for line in lines) == 1
    assert all(line["update/grad_norm"] > 0 for line in lines)
