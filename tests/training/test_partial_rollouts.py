"""Partial rollouts: cut completions go on from their prefix, with every token's log-prob and version."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helpers.interrupts import stop_after
from helpers.rollouts_ahead import ahead_config, begin_training
from helpers.runs import TINY, final_state, metric_lines
from vlmrl.assemble import lifecycle
from vlmrl.config import load
from vlmrl.forward.packing import pack
from vlmrl.schema import Advantages

PARTIAL = "strategies=[{name: partial_rollouts, options: {max_tokens: 7}}]"


def test_a_cut_completion_goes_on_in_a_later_step(tmp_path: Path) -> None:
    more = [PARTIAL, "engine=hf", "rollout.max_tokens=3", "optimizer.lr=1e-9"]
    with begin_training(ahead_config(tmp_path / "run", *more)) as trainer:
        reports = [trainer.step() for _ in range(4)]
        last = reports[-1].rollouts
        whole = Advantages(torch.ones(3, 3), torch.ones(3, 3).bool(), torch.ones(3, 3))
        (batch,) = pack(last, whole, updates=1, micro_tokens=10**6, max_tokens=7)
        again = [trainer.policy.logprobs(micro)[0].detach() for micro in batch.micro]
    assert not reports[0].advantages.kept.any()  # the tiny model never stops by itself
    first = reports[0].rollouts
    assert {c.finish_reason for group in first.completions for c in group} == {"abort"}
    done = reports[2].rollouts
    assert [p.place for p in done.batch.prompts] == [p.place for p in first.batch.prompts]
    for before, group in zip(first.completions, done.completions, strict=True):
        for begun, completion in zip(before, group, strict=True):
            assert completion.token_ids[:3] == begun.token_ids
            assert completion.logprobs[:3] == begun.logprobs
            if completion.finish_reason == "length":
                assert len(completion.token_ids) == len(completion.logprobs) == 7
                assert completion.versions == ((0, 3), (1, 3), (2, 1))
    assert reports[2].advantages.kept.all() and done.max_tokens == 7
    assert reports[2].metrics["partial_rollouts/continued"] > 0.5
    # Hardly trained: the log-probs of all segments are those of one forward over the whole.
    (micro,), (new,) = batch.micro, again
    gap = (new - micro.sampling_logprobs)[micro.mask].abs().max()
    assert gap < 1e-4


def test_what_is_done_stays_where_it_is(tmp_path: Path) -> None:
    more = ["strategies=[{name: partial_rollouts, options: {max_tokens: 3}}]", "engine=hf"]
    with begin_training(ahead_config(tmp_path / "run", *more, "rollout.max_tokens=3")) as trainer:
        draw = trainer._draw_prompts(0)
        rollouts = trainer.queue.take()
        found = trainer.strategies[0].prepare(rollouts, draw, trainer.run_parts)
        assert found == replace(rollouts, max_tokens=3)
        assert trainer.strategies[0].metrics(found, None)["partial_rollouts/waiting"] == 0  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_run_with_cut_completions_resumes_bit_for_bit(tmp_path, monkeypatch) -> None:
    def config(name: str, *more: str):
        short = ("sft=null", "evaluation=null", PARTIAL, "rollout.max_tokens=3")
        return load("quickstart", [f"run.dir={tmp_path / name}", *TINY, *short, *more])

    assert lifecycle.train(config("whole"))["finished"]
    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "Interrupt", stop_after(2))
        assert not lifecycle.train(config("run"))["finished"]
    assert lifecycle.train(config("run", "resume=auto"))["finished"]
    assert final_state(tmp_path / "run") == final_state(tmp_path / "whole")
    assert metric_lines(tmp_path / "run") == metric_lines(tmp_path / "whole")
