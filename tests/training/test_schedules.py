"""Runs whose settings change over training: each step has its own, and a resumed run the same ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.daily import marked
from helpers.interrupts import stop_after
from helpers.rollouts_ahead import ahead_config, begin_training
from helpers.runs import TINY, final_state, metric_lines
from vlmrl.assemble import lifecycle
from vlmrl.config import load
from vlmrl.errors import UserError

CHANGING = [
    "algorithm.options.kl={schedule: {linear: [0.4, 0], until: 0.4}}",
    "rollout.max_tokens={schedule: [[0, 4], [0.4, 9]]}",
    "rollout.group_size={schedule: [[0, 3], [0.4, 2]]}",
    "rollout.prompts={schedule: [[0, 2], [0.4, 4]]}",
    "rollout.temperature={schedule: [[0, 1], [0.6, 0.5]]}",
    "optimizer.max_grad_norm={schedule: [[0, 1], [0.6, 0.01]]}",
    "optimizer.lr={schedule: {cosine: [1e-2, 1e-3]}}",
]


def test_each_step_has_the_settings_of_its_progress(tmp_path: Path) -> None:
    settings = ahead_config(tmp_path / "run", "run.steps=5", "optimizer.warmup_steps=0", *CHANGING)
    with begin_training(settings) as trainer:
        reports = [trainer.step() for _ in range(5)]
        assert trainer.policy.temperature == 0.5
        assert trainer.policy.max_grad_norm == 0.01
    assert [r.rollouts.shape for r in reports] == [(2, 3), (2, 3), (4, 2), (4, 2), (4, 2)]
    assert [r.rollouts.max_tokens for r in reports] == [4, 4, 9, 9, 9]
    longest = [max(len(c.token_ids) for g in r.rollouts.completions for c in g) for r in reports]
    assert max(longest[:2]) <= 4 < max(longest[2:]) <= 9
    kl = [r.metrics["schedule/algorithm.options.kl"] for r in reports]
    assert kl == pytest.approx([0.4, 0.2, 0, 0, 0])
    # Without weight the divergence is not even computed.
    assert ["loss/kl" in r.metrics for r in reports] == [True, True, False, False, False]
    lr = [r.metrics["update/lr"] for r in reports]
    assert lr == pytest.approx([r.metrics["schedule/optimizer.lr"] for r in reports])
    assert lr == sorted(lr, reverse=True) and lr[0] == 1e-2


def test_a_batch_that_is_generated_ahead_has_the_settings_of_its_own_step(tmp_path: Path) -> None:
    more = ["rollout.max_staleness=2", *(c for c in CHANGING if "temperature" not in c)]
    with begin_training(ahead_config(tmp_path / "run", "run.steps=5", *more)) as trainer:
        reports = [trainer.step() for _ in range(5)]
    assert [r.rollouts.shape for r in reports] == [(2, 3), (2, 3), (4, 2), (4, 2), (4, 2)]
    assert [r.rollouts.max_tokens for r in reports] == [4, 4, 9, 9, 9]


def test_groups_of_two_sizes_never_meet_in_one_step(tmp_path: Path) -> None:
    more = ["rollout.max_staleness=1", "rollout.group_size={schedule: [[0, 3], [0.4, 2]]}"]
    settings = ahead_config(tmp_path / "run", "algorithm=dapo", *more)
    with pytest.raises(UserError, match="groups of two sizes would meet"), begin_training(settings):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("step", marked([6, 5, 7], [6]))
def test_a_run_resumes_across_a_change_bit_for_bit(tmp_path, monkeypatch, step) -> None:
    def config(name: str, *more: str):
        return load("quickstart", [f"run.dir={tmp_path / name}", *TINY, *CHANGING, *more])

    assert lifecycle.train(config("whole"))["finished"]
    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "Interrupt", stop_after(step))
        assert not lifecycle.train(config("run"))["finished"]
    assert lifecycle.train(config("run", "resume=auto"))["finished"]
    assert final_state(tmp_path / "run") == final_state(tmp_path / "whole")
    assert metric_lines(tmp_path / "run") == metric_lines(tmp_path / "whole")
    written = json.loads((tmp_path / "run/config.json").read_text())
    assert written["rollout"]["max_tokens"] == {"schedule": [[0, 4], [0.4, 9]]}
