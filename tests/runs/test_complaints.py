"""A run that learns nothing is told why in words, and what to try; an honest one is left alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vlmrl.assemble import lifecycle
from vlmrl.config import load
from vlmrl.features.report.page import build_report
from vlmrl.runs import run_folder
from vlmrl.runs.complaints import complain, complain_of_last

HONEST = {
    "reward/mean": 0.55,
    "reward/std": 0.2,
    "rollout/answered": 0.97,
    "rollout/uniform_share": 0.2,
    "rollout/truncated": 0.05,
    "media_ablation/blank_logprob_drop": 0.3,
    "update/skipped": 0.0,
}


def test_an_honest_run_is_left_alone() -> None:
    assert complain(HONEST) == []
    assert complain({}) == []


@pytest.mark.parametrize(
    ("changed", "reason", "next_thing"),
    [
        ({"rollout/answered": 0.0, "rollout/uniform_share": 1.0, "reward/std": 0.0, "reward/mean": 0.0},
         "no readable answers: 0 %", "cold start"),
        ({"rollout/uniform_share": 1.0, "reward/std": 0.0, "reward/mean": 0.1},
         "the reward is constant: all groups are uniform, every completion has 0.1", "vlmrl verify"),
        ({"rollout/uniform_share": 0.9, "reward/mean": 0.95}, "too easy: 90 %", "harder rows"),
        ({"rollout/uniform_share": 1.0, "reward/mean": 0.04}, "too hard: all groups", "easier rows"),
        ({"media_ablation/blank_logprob_drop": 0.0}, "blind: ", "model.towers"),
        ({"rollout/truncated": 0.7}, "70 % of completions were cut", "rollout.max_tokens"),
        ({"update/skipped": 1.0}, "not finite", "not applied"),
        ({"rollout/groups_short": 3.0, "rollout/batches": 8.0}, "3 groups are missing", "8 batches"),
    ],
)  # fmt: skip
def test_each_reason_is_named_with_what_to_try(
    changed: dict[str, float], reason: str, next_thing: str
) -> None:
    (line,) = complain({**HONEST, **changed})
    assert reason in line and next_thing in line and "\n" not in line


def test_a_recipe_that_learns_from_uniform_groups_is_not_told_that_they_are_uniform() -> None:
    uniform = {**HONEST, "rollout/uniform_share": 1.0, "reward/mean": 0.04}
    assert complain({**uniform, "rollout/silent_share": 0.1}) == []
    (line,) = complain({**uniform, "rollout/silent_share": 0.9})
    assert "90 % of groups are without a gradient" in line


def test_the_last_steps_are_judged_not_the_first() -> None:
    bad = {**HONEST, "rollout/answered": 0.0}
    assert complain_of_last([bad] * 5 + [HONEST] * 10) == []
    assert len(complain_of_last([HONEST] * 5 + [bad] * 10)) == 1
    assert complain_of_last([]) == []


@pytest.mark.slow
def test_a_run_without_readable_answers_says_so_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [
        f"run.dir={tmp_path / 'run'}", "run.steps=1", "run.threads=1", "run.report=false",
        "tracking.tensorboard=false", "sft=null", "evaluation=null",
        "checks={media_ablation_every: 0, parity_every: 0}",
        "rollout={prompts: 2, group_size: 2, max_tokens: 4}",
    ]  # fmt: skip
    lifecycle.train(load("quickstart", settings))
    assert "no readable answers: 0 % of completions have one; try a cold start" in (
        capsys.readouterr().out
    )
    (line,) = run_folder.metrics_path(tmp_path / "run").read_text().splitlines()
    assert json.loads(line)["rollout/answered"] == 0
    page = build_report(tmp_path / "run").read_text(encoding="utf-8")
    complaint = page.index("no readable answers: 0 %")
    assert complaint < page.index('<dl class="tiles">')
    assert "no answer: " in page  # with the raw text
