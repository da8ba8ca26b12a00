"""Runs in stages: each has its sources, rewards and settings, and a kill at a boundary changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.daily import marked
from helpers.interrupts import stop_after
from helpers.rollouts_ahead import HELPERS, ahead_config, begin_training
from helpers.runs import TINY, final_state, metric_lines
from vlmrl.assemble import lifecycle
from vlmrl.config import load
from vlmrl.features.report.page import build_report
from vlmrl.system.files import read_json

SCORES = f"{HELPERS}/scores.py"
STAGED = [
    "data.train=[{name: easy, card: shapes, split: 'train[:50%]'}, "
    "{name: hard, card: shapes, split: 'train[50%:]'}]",
    f"""stages=[
      {{until: 0.4, name: short, sources: [easy], rollout: {{max_tokens: 4}}, rewards: ['{SCORES}:sparse']}},
      {{until: 0.6, sources: [hard]}},
      {{name: long, rollout: {{max_tokens: 9, group_size: 2}}, algorithm: {{options: {{kl: 0.1}}}}}}]""",
]


def sources_of(report) -> set[str]:
    return {prompt.sample.source for prompt in report.rollouts.batch.prompts}


@pytest.mark.parametrize("ahead", [0, 2])
def test_each_stage_has_its_sources_rewards_and_settings(tmp_path: Path, ahead: int) -> None:
    more = ["run.steps=10", "rollout.prompts=4", f"rollout.max_staleness={ahead}", *STAGED]
    with begin_training(ahead_config(tmp_path / "run", *more)) as trainer:
        reports = [trainer.step() for _ in range(10)]
    assert [r.metrics["schedule/stage"] for r in reports] == [1, 1, 1, 1, 2, 2, 3, 3, 3, 3]
    assert [sources_of(r) for r in reports[:6]] == [{"easy"}] * 4 + [{"hard"}] * 2
    assert set.union(*map(sources_of, reports[6:])) == {"easy", "hard"}
    assert [r.rollouts.max_tokens for r in reports] == [4] * 4 + [6] * 2 + [9] * 4
    assert [r.rollouts.shape for r in reports] == [(4, 3)] * 6 + [(4, 2)] * 4
    verifiers = [set(r.rewards.verdicts[0][0]) for r in reports]
    assert verifiers == [{"sparse"}] * 4 + [{"varied"}] * 6
    assert ["loss/kl" in r.metrics for r in reports] == [False] * 6 + [True] * 4


def test_a_source_goes_on_in_a_later_stage_where_it_was(tmp_path: Path) -> None:
    more = [
        "run.steps=6",
        "rollout.prompts=8",
        "data.train=[{name: few, card: shapes, limit: 32}, {name: other, card: shapes}]",
        "stages=[{until: 0.4, sources: [few]}, {until: 0.7, sources: [other]}, {sources: [few]}]",
    ]
    with begin_training(ahead_config(tmp_path / "run", *more)) as trainer:
        drawn = [p.sample.id for s in range(6) for p in trainer.queue._issue(s, 0, 0).batch.prompts]
    few = drawn[:24] + drawn[40:]
    assert len(few) == 32 == len(set(few))  # one epoch, though another stage came between


@pytest.mark.slow
@pytest.mark.parametrize("step", marked([6, 5, 7, 8], [6]))
def test_a_run_resumes_across_a_boundary_bit_for_bit(tmp_path, monkeypatch, step) -> None:
    def config(name: str, *more: str):
        return load("quickstart", [f"run.dir={tmp_path / name}", *TINY, *STAGED, *more])

    workers = "data.workers=1"  # with and without them the same rows
    assert lifecycle.train(config("whole", workers))["finished"]
    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "Interrupt", stop_after(step))
        assert not lifecycle.train(config("run"))["finished"]
    assert lifecycle.train(config("run", "resume=auto"))["finished"]
    assert final_state(tmp_path / "run") == final_state(tmp_path / "whole")
    assert metric_lines(tmp_path / "run") == metric_lines(tmp_path / "whole")
    assert read_json(tmp_path / "run/config.json")["stages"][0]["sources"] == ["easy"]
    page = build_report(tmp_path / "run").read_text()
    assert "stage 1 (short)" in page and "stage 3 (long): from step 4" in page
