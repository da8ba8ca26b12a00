"""Rehearsed answers: whose rows, what is stored of them, how they are trained on and resumed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.interrupts import stop_after
from helpers.kills import CURRICULUM
from helpers.rollouts_ahead import ahead_config, begin_training
from helpers.runs import TINY, final_state, metric_lines
from vlmrl.assemble import lifecycle
from vlmrl.config import load
from vlmrl.errors import UserError
from vlmrl.parts.strategies import rehearsal
from vlmrl.parts.strategies.rehearsal import Rehearsal

FEW = "data.train=[{card: shapes, limit: 12}]"


def named(**options: object) -> str:
    given = ", ".join(f"{key}: {value}" for key, value in options.items())
    return f"strategies=[{{name: rehearsal, options: {{{given}}}}}]"


def test_only_near_perfect_rows_are_kept_with_all_their_samples(tmp_path: Path) -> None:
    with begin_training(ahead_config(tmp_path / "run", "engine=hf", FEW)) as trainer:
        every, some = (
            Rehearsal(samples=2, correct_above=-1),
            Rehearsal(samples=2, correct_above=0.4),
        )
        none, six = Rehearsal(samples=2, correct_above=9), Rehearsal(rows=6, correct_above=-1)
        for strategy in (every, some, none, six):
            strategy.begin(trainer.run_parts)
        order = trainer.loader.next(4).prompts
    assert every.state["rows"][:, :2].tolist() == [[0, row] for row in range(12)]
    assert six.state["rows"][:, 1].tolist() == [0, 2, 4, 6, 8, 10]
    assert 0 < len(some.state["rows"]) < 12 and len(none.state["rows"]) == 0
    assert set(every.state["sizes"]) == {2} and set(six.state["sizes"]) == {8}
    assert (every.state["versions"][:, 0] == 0).all()
    with begin_training(ahead_config(tmp_path / "other", "engine=hf", FEW)) as trainer:
        assert [p.place for p in trainer.loader.next(4).prompts] == [p.place for p in order]


def test_the_rows_that_are_tried_are_told_with_the_time_left(tmp_path, monkeypatch) -> None:
    said: list[str] = []
    with begin_training(ahead_config(tmp_path / "run", "engine=hf", FEW)) as trainer:
        run_parts = replace(trainer.run_parts, say=said.append)
        monkeypatch.setattr(rehearsal, "SAY_EVERY_S", 0.0)
        Rehearsal(rows=6, samples=1, correct_above=-1).begin(run_parts)
        assert said[0] == "rehearsal: 6 rows are tried before the first step"
        assert re.fullmatch(r"rehearsal: 3 of 6 rows tried, 3 near-perfect, \d+ s left", said[1])
        assert said[2:] == ["rehearsal: 6 of 6 rows tried, 6 near-perfect, 0 s left"]
        monkeypatch.setattr(rehearsal, "SAY_EVERY_S", 1e9)
        Rehearsal(rows=6, samples=1, correct_above=-1).begin(run_parts)
        assert len(said) == 5  # the first and the last line are always there


def test_a_step_trains_on_stored_answers_and_counts_them_nowhere(tmp_path: Path) -> None:
    more = ["engine=hf", FEW, named(samples=2, correct_above=-1), "algorithm=dph"]
    with begin_training(ahead_config(tmp_path / "run", *more)) as trainer:
        first = trainer.step()
        report = trainer.step()
        state = trainer.strategies[0].state
    stored = {tuple(ids) for ids in np.split(state["token_ids"], np.cumsum(state["lengths"])[:-1])}
    groups = report.rollouts.completions
    assert {c.origin for group in groups for c in group} == {"rehearsal"}
    assert {c.token_ids for group in groups for c in group} <= stored
    assert all(len({c.token_ids for c in group}) <= 2 for group in groups)
    assert "reward/mean" not in report.metrics
    assert report.metrics["rehearsal/share"] == 1 and report.metrics["rehearsal/rows"] == 12
    assert first.metrics["loss/rehearsal"] == pytest.approx(0, abs=1e-9)  # it is that model still
    assert torch.isfinite(report.advantages.values).all() and report.advantages.kept.all()


@pytest.mark.nightly
def test_a_curriculum_with_rehearsal_resumes_bit_for_bit(tmp_path, monkeypatch) -> None:
    def config(name: str, *more: str):
        short = ("sft=null", "evaluation=null", *CURRICULUM)
        return load("quickstart", [f"run.dir={tmp_path / name}", *TINY, *short, *more])

    assert lifecycle.train(config("whole"))["finished"]
    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "Interrupt", stop_after(3))
        assert not lifecycle.train(config("run"))["finished"]
    assert lifecycle.train(config("run", "resume=auto"))["finished"]
    assert final_state(tmp_path / "run") == final_state(tmp_path / "whole")
    assert "trainer/strategies.safetensors" in final_state(tmp_path / "run")
    assert metric_lines(tmp_path / "run") == metric_lines(tmp_path / "whole")
    with pytest.raises(UserError, match="expected the state of strategies"):
        lifecycle.train(config("run", "resume=auto", "run.steps=9", "strategies=[]"))
