"""An evaluation in which nothing could be scored ends the run with its cause, and loses no step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.rollouts_ahead import ahead_config, begin_training
from vlmrl.errors import NothingScored
from vlmrl.policy import checkpoint
from vlmrl.runs.complaints import complain_of_evaluation
from vlmrl.schema import Rewards, Rollouts, Verdict
from vlmrl.system.interrupt import Interrupt
from vlmrl.training.evaluation import average_pass_at_k

EVALUATED = ["evaluation={every: 2, limit: 3, metric: reward}", "run.save_every=100"]


def fail_from_step(trainer: Any, step: int, verdict: Verdict | None) -> None:
    """Mask every completion of the evaluations from `step` on; with a verdict, as its fault."""
    score = trainer.scorer.score

    def scored(rollouts: Rollouts, progress: float = 0.0, whole: bool = True) -> Rewards:
        rewards = score(rollouts, progress, whole)
        if whole or trainer.done < step:
            return rewards
        verdicts = rewards.verdicts
        if verdict is not None:
            verdicts = tuple(tuple({"varied": verdict} for _ in group) for group in verdicts)
        return replace(rewards, valid=torch.zeros_like(rewards.valid), verdicts=verdicts)

    trainer.scorer.score = scored


def test_the_fault_is_named_and_the_step_is_saved(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with begin_training(ahead_config(folder, *EVALUATED)) as trainer:
        fail_from_step(trainer, 2, Verdict.failed("TypeError: no number"))
        with pytest.raises(NothingScored) as found:
            list(trainer.run(Interrupt()))
    assert str(found.value) == (
        "evaluation: no completion has a 'reward'; 3 of 3 completions: verifier 'varied' failed: "
        "TypeError: no number"
    )
    saved = checkpoint.latest(folder)
    assert saved is not None and checkpoint.read_progress(saved).step == 2


def test_completions_that_are_masked_without_a_fault_are_named_by_their_end(tmp_path: Path) -> None:
    with begin_training(ahead_config(tmp_path / "run", *EVALUATED)) as trainer:
        fail_from_step(trainer, 0, None)
        with pytest.raises(NothingScored, match="3 of 3 completions: masked, finish reason '"):
            list(trainer.run(Interrupt()))


def test_a_mean_that_leaves_faults_out_is_stated_with_its_bound_and_does_not_choose_the_best(
    tmp_path: Path,
) -> None:
    """Two of three completions fail at step 2, and the third earns more than any did before."""
    folder = tmp_path / "run"
    with begin_training(ahead_config(folder, *EVALUATED)) as trainer:
        score = trainer.scorer.score

        def scored(rollouts: Rollouts, progress: float = 0.0, whole: bool = True) -> Rewards:
            rewards = score(rollouts, progress, whole)
            if whole:
                return rewards
            late = trainer.done >= 2
            fault = Verdict.failed("TypeError: no number") if late else Verdict(0.5)
            paid = Verdict(0.9 if late else 0.5)
            valid = torch.tensor([[True], [not late], [not late]])
            total = torch.tensor([[paid.score], [fault.score or 0.0], [fault.score or 0.0]])
            verdicts = tuple(({"varied": v},) for v in (paid, fault, fault))
            return replace(rewards, total=total, valid=valid, verdicts=verdicts)

        trainer.scorer.score = scored
        list(trainer.run(Interrupt()))
        assert trainer.best == 0
        first, last = trainer.evaluations[0], trainer.evaluations[2]
    assert not {"faults", "with_zeros", "masked"} & first.keys()
    assert last["metrics"]["reward"] == pytest.approx(0.9) and last["num_samples"] == 1
    assert last["faults"] == {"varied": 2} and last["num_asked"] == 3
    assert [last["with_zeros"][name] for name in ("reward", "varied")] == pytest.approx([0.3] * 2)
    assert complain_of_evaluation(last, "reward") == [
        "of 3 held-out completions verifier 'varied' failed on 2: they count in no mean; with 0 for them "
        "reward is 0.300 instead of 0.900"
    ]


def test_pass_at_k_goes_as_far_as_there_are_samples() -> None:
    found = average_pass_at_k([(100, 1), (100, 3)], 100)
    assert list(found) == ["1", "2", "4", "8", "16", "32", "64", "100"]
    assert found["1"] == pytest.approx(0.02) and found["100"] == 1.0
