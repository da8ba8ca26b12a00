"""Rollouts ahead of the trainer: the bound, the order, faults, and what a checkpoint keeps of them."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from helpers.rollouts_ahead import (
    HELPERS,
    SPARSE,
    ahead_config,
    begin_training,
    ids_of,
    no_thread_is_left,
    trained_ids,
)
from vlmrl.assemble import build, lifecycle
from vlmrl.assemble.validate import validate
from vlmrl.engines.base import Sampling
from vlmrl.errors import UserError
from vlmrl.forward.packing import pack
from vlmrl.policy import checkpoint
from vlmrl.policy.optimizers import learning_rate
from vlmrl.system.interrupt import Interrupt
from vlmrl.system.seeds import seed_of


def ages_of(report, version: int) -> set[int]:
    groups = report.rollouts.completions
    return {version - v for group in groups for c in group for v, _ in c.versions}


# ------------------------------------------------------------------------------------ staleness 0


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["optimizer.minibatches=3", "optimizer.epochs=2"]])
def test_without_staleness_it_is_the_synchronous_loop_bit_for_bit(tmp_path, more):
    settings = ahead_config(tmp_path / "run", *more)
    with begin_training(settings) as trainer:
        for _ in range(3):
            trainer.step()
        weights = {name: w.clone() for name, w in trainer.policy.weights().items()}
        assert {thread for thread, _ in trainer.engine.calls} == {"MainThread"}
    with begin_training(settings) as trainer:
        start = {name: w.clone() for name, w in trainer.policy.weights().items()}
        for step in range(3):
            seed = seed_of(settings.run.seed, 11, step, 0)
            rollouts = trainer.engine.generate(trainer.loader.next(), Sampling(3, 6, seed=seed))
            rewards = trainer.scorer.score(rollouts, step / 6)
            torch.manual_seed(seed_of(settings.run.seed, 10, step, 0))
            batches = pack(
                rollouts,
                trainer.algorithm.advantages(rewards, rollouts),
                updates=settings.optimizer.minibatches,
                micro_tokens=settings.optimizer.micro_batch_tokens,
                max_tokens=6,
            )
            if more:
                batches = trainer.policy.with_old(batches) * 2
            lr = learning_rate(settings.optimizer, step, 6)
            trainer.policy.update(batches, trainer.algorithm, lr, step / 6)
            trainer.engine.sync(trainer.policy)
        found = trainer.policy.weights()
    assert all(torch.equal(weights[name], w) for name, w in found.items())
    assert not all(torch.equal(weights[name], w) for name, w in start.items())


# -------------------------------------------------------------------------------- bound and order


@pytest.mark.slow
@pytest.mark.parametrize(
    ("staleness", "more"),
    [
        pytest.param(1, [], marks=pytest.mark.nightly),
        (3, []),
        (2, ["algorithm={name: dapo, options: {dynamic_sampling_batches: 2}}", SPARSE]),
    ],
)
def test_at_any_speed_no_token_is_too_old_and_the_order_is_the_loaders(
    tmp_path, order, staleness, more
):
    for pause in (0.0, 0.005, 0.03):
        settings = ahead_config(
            tmp_path / "run",
            f"rollout.max_staleness={staleness}",
            f"engine.options.pause={pause}",
            *more,
        )
        with begin_training(settings) as trainer:
            taken = []
            for _ in range(settings.run.steps):
                version = trainer.policy.version
                report = trainer.step()
                taken.append(ids_of(report.rollouts))
                ages = ages_of(report, version)
                assert min(ages) >= 0 and max(ages) <= staleness
                assert report.metrics["rollout/staleness_max"] == max(ages)
            issued = [ids for _, ids in trainer.engine.calls]
        assert {thread for thread, _ in trainer.engine.calls} == {"rollouts"}
        assert issued == order[: len(issued)]
        assert len(issued) > settings.run.steps if more else taken == issued
        assert no_thread_is_left()


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [0, 2])
def test_rewards_of_a_finished_group_are_computed_while_others_are_generated(tmp_path, staleness):
    mark, rewards = tmp_path / "mark", tmp_path / "rewards.py"
    rewards.write_text(
        "def marks(completion):\n"
        f"    open({str(mark)!r}, 'w').close()\n"
        "    return sum(completion.token_ids) % 997 / 997\n"
    )
    plain = ["rewards=[" + str(HELPERS / "scores.py") + ":varied]", "run.steps=2"]
    drained = f"engine.name={HELPERS}/copy_engine.py:DrainedEngine"
    more = [f"rollout.max_staleness={staleness}"]
    waiting = [
        f"rewards=[{rewards}:marks]",
        f"engine.name={HELPERS}/copy_engine.py:RewardedEngine",
        f"engine.options={{mark: {mark}}}",
        "run.steps=2",
    ]
    with begin_training(ahead_config(tmp_path / "run", *more, *waiting)) as trainer:
        found = trainer.step()
        assert (mark.exists() and not trainer.scorer._calls._begun) or staleness
    with begin_training(ahead_config(tmp_path / "plain", *more, *plain, drained)) as trainer:
        expected = trainer.step()
    assert torch.equal(found.rewards.total, expected.rewards.total)
    assert found.rewards.valid.all()


def test_what_is_generated_before_each_update_is_as_old_as_the_bound_allows(tmp_path):
    with begin_training(ahead_config(tmp_path / "run", "rollout.max_staleness=2")) as trainer:
        sync = trainer.engine.sync

        def late_sync(policy):
            trainer.queue.drain()
            sync(policy)

        trainer.engine.sync = late_sync
        found = [trainer.step().metrics for _ in range(6)]
    assert [m["rollout/staleness"] for m in found] == [0, 1, 2, 2, 2, 2]
    assert [m["rollout/off_policy"] for m in found] == [0, 1, 1, 1, 1, 1]
    for m in found:
        assert 0 <= m["rollout/trainer_waiting"] <= 1 and 0 <= m["rollout/generation_idle"] <= 1


@pytest.mark.slow
def test_nothing_is_issued_that_no_step_would_take(tmp_path):
    with begin_training(
        ahead_config(tmp_path / "run", "rollout.max_staleness=3", "run.steps=4")
    ) as trainer:
        for _ in range(4):
            trainer.step()
        assert len(trainer.engine.calls) == 4


# ----------------------------------------------------------------------------------------- faults


def test_an_engine_that_cannot_is_refused_before_anything_is_written(tmp_path):
    settings = ahead_config(
        tmp_path / "run", "rollout.max_staleness=1", "engine={name: hf, options: {}}"
    )
    for refuse in (validate, lifecycle.train):
        with pytest.raises(
            UserError, match=r"engine 'hf' cannot generate while.*use engine vllm_s"
        ):
            refuse(settings)
    assert not (tmp_path / "run").exists()
    validate(
        ahead_config(tmp_path / "run", "rollout.max_staleness=1", "engine={name: vllm_server}")
    )


@pytest.mark.slow
def test_an_error_of_a_thread_surfaces_in_the_step_that_needs_the_batch(tmp_path, order):
    poison = order[2][1]
    settings = ahead_config(
        tmp_path / "run", "rollout.max_staleness=2", f"engine.options.poison={json.dumps(poison)}"
    )
    with begin_training(settings) as trainer:
        trainer.step()
        trainer.step()
        for _ in range(2):
            with pytest.raises(UserError, match="is refused"):
                trainer.step()
    assert no_thread_is_left()


def test_the_end_of_a_run_ends_the_threads(tmp_path):
    settings = ahead_config(tmp_path / "run", "rollout.max_staleness=2", "engine.options.pause=0.2")
    with pytest.raises(KeyboardInterrupt), begin_training(settings) as trainer:
        trainer.queue.fill(0, 0)
        raise KeyboardInterrupt
    assert no_thread_is_left()


@pytest.mark.slow
def test_evaluations_and_checks_have_the_engine_for_themselves(tmp_path, order):
    folder = tmp_path / "run"
    settings = ahead_config(
        folder,
        "rollout.max_staleness=2",
        "engine.options.pause=0.02",
        "evaluation={every: 2, limit: 3, metric: reward}",
        "checks={media_ablation_every: 3, media_ablation_prompts: 2, parity_every: 2}",
        "run.steps=4",
    )
    with begin_training(settings) as trainer:
        assert len(list(trainer.run(Interrupt()))) == 4
        assert not trainer.engine.mixed
    assert len(list((folder / "evals").glob("*.json"))) == 3
    assert trained_ids(folder) == order[:4]


# ----------------------------------------------------------------------------------------- resume


def stop_after(steps: int, how: str) -> type[Interrupt]:
    """An interrupt that comes after `steps` steps: asked for, or as a crash of the trainer."""

    class Stop(Interrupt):
        looks = 0

        @property
        def asked(self) -> bool:  # type: ignore[override]
            self.looks += 1
            if how == "crash" and self.looks > steps:
                raise MemoryError("crash")
            return self.looks > steps

    return Stop


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "pause"),
    [
        ("interrupt", 0.03),
        ("crash", 0.0),
        pytest.param("interrupt", 0.0, marks=pytest.mark.nightly),
        pytest.param("crash", 0.03, marks=pytest.mark.nightly),
    ],
)
def test_resume_neither_skips_nor_repeats_a_prompt(tmp_path, monkeypatch, order, how, pause):
    folder = tmp_path / "run"
    settings = [
        "rollout.max_staleness=2",
        f"engine.options.pause={pause}",
        "run.steps=8",
        "run.save_every=2",
    ]
    for steps in (1, 2, 0):
        with monkeypatch.context() as patch:
            patch.setattr(lifecycle, "Interrupt", stop_after(steps, how))
            try:
                assert not lifecycle.train(ahead_config(folder, "resume=auto", *settings))[
                    "finished"
                ]
            except MemoryError:
                assert how == "crash"
    assert lifecycle.train(ahead_config(folder, "resume=auto", *settings))["finished"]
    assert trained_ids(folder) == order[:8]
    lines = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 9))
    assert all(line["rollout/staleness_max"] <= 2 for line in lines)
    assert no_thread_is_left()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> Path:
    """The checkpoint after two steps of a run with η = 2; the two batches that wait are finished."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    settings = ahead_config(folder, "rollout.max_staleness=2")
    with begin_training(settings) as trainer:
        for _ in range(2):
            trainer.step()
        trainer.queue.drain()
        trainer.save()
    return folder / "checkpoints/step-2"


def resumed(path: Path, tmp_path: Path, order: list[list[str]], staleness: int) -> tuple:
    """Reports of the steps 3 to 6 of a run that goes on from a checkpoint."""
    settings = ahead_config(tmp_path / "on", f"rollout.max_staleness={staleness}")
    progress = checkpoint.read_progress(path)
    with ExitStack() as stack:
        trainer = build.build_trainer(settings, path, progress, stack)
        lifecycle.begin_rl(trainer, path, progress)
        reports = []
        for _ in range(4):
            version = trainer.policy.version
            reports.append((trainer.step(), version))
        made = [ids for _, ids in trainer.engine.calls]
    for report, version in reports:
        assert max(ages_of(report, version)) <= staleness
    assert [ids_of(report.rollouts) for report, _ in reports] == order[2:6]
    return [report for report, _ in reports], made


@pytest.mark.slow
def test_finished_completions_are_trained_on_as_they_were_saved(stopped, tmp_path, order):
    queue = checkpoint.read_queue(stopped)
    assert [len(entry["groups"]) for entry in queue] == [3, 3]
    reports, made = resumed(stopped, tmp_path, order, 2)
    assert made == order[4:6]
    for entry, report in zip(queue, reports, strict=False):
        for number, group in enumerate(report.rollouts.completions):
            for saved, c in zip(entry["groups"][str(number)]["completions"], group, strict=True):
                assert tuple(saved["token_ids"]) == c.token_ids
                assert tuple(saved["logprobs"]) == c.logprobs
                assert tuple(map(tuple, saved["versions"])) == c.versions
                assert c.text and c.parsed is not None
        assert report.metrics["rollout/stale_dropped"] == 0


@pytest.mark.slow
def test_what_is_too_old_for_a_lower_bound_is_made_again(stopped, tmp_path, order):
    ages = [
        [2 - min(v for c in group["completions"] for v, _ in c["versions"]) for group in groups]
        for groups in (entry["groups"].values() for entry in checkpoint.read_queue(stopped))
    ]
    for bound in (1, 0):
        reports, made = resumed(stopped, tmp_path, order, bound)
        dropped = [sum(place + age > bound for age in found) for place, found in enumerate(ages)]
        assert sum(map(len, made)) == sum(dropped) + 6
        assert made[-2:] == order[4:6]
        if bound:
            assert [r.metrics["rollout/stale_dropped"] for r in reports[:2]] == [sum(dropped), 0]


@pytest.mark.slow
def test_what_was_not_finished_is_made_again_and_only_that(stopped, tmp_path, order):
    queue = checkpoint.read_queue(stopped)
    del queue[0]["groups"]["1"], queue[1]["groups"]["0"], queue[1]["groups"]["2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "read_queue", lambda _: queue)
        _, made = resumed(stopped, tmp_path, order, 2)
    assert made == [[order[2][1]], [order[3][0], order[3][2]], *order[4:6]]
