"""The cold start's towers: frozen ones see each medium once, each moves at its own learning rate."""

from contextlib import ExitStack

import pytest
import torch

from helpers.runs import TINY
from vlmrl.assemble.build import build_trainer
from vlmrl.assemble.cold_start import run_cold_start
from vlmrl.config import load
from vlmrl.policy.checkpoint import Progress
from vlmrl.policy.trainable import tower_of
from vlmrl.system.interrupt import Interrupt

ROWS = "sft.sources.0.limit=6"  # few, so that they come again


def cold_start(folder, *overrides):
    """Losses, weights, how often the tower ran, and how far each tower moved, of a cold start."""
    config = load("quickstart", [*TINY, f"run.dir={folder}", ROWS, *overrides])
    runs, losses = [], []
    with ExitStack() as stack, Interrupt() as interrupt:
        trainer = build_trainer(config, None, Progress(), stack)
        policy = trainer.policy
        tower = policy.base.get_submodule("model.visual.blocks.0")
        forward = tower.forward
        tower.forward = lambda *a, **k: (runs.append(1), forward(*a, **k))[1]
        before = {name: weight.detach().clone() for name, weight in policy.named.items()}
        trainer.tracker.sft_step = lambda _, metrics: losses.append(metrics["loss"])
        assert run_cold_start(trainer, config.sft, None, Progress(), interrupt)
        moved: dict[str, float] = {}
        for name, weight in policy.named.items():
            step = (weight.detach() - before[name]).abs().max().item()
            moved[tower_of(name, policy.family)] = max(
                step, moved.get(tower_of(name, policy.family), 0.0)
            )
        weights = {n: w.detach().clone() for n, w in policy.base.named_parameters()}
    return losses, weights, len(runs), moved


@pytest.mark.slow
def test_a_cold_start_that_keeps_features_is_the_one_that_computes_them_again(tmp_path):
    frozen = "model.freeze=[vision]"
    losses, weights, often, _ = cold_start(tmp_path / "a", frozen)
    same, kept, once, _ = cold_start(tmp_path / "b", frozen, "model.keep_features_gib=1")
    assert same == losses
    assert all(torch.equal(kept[name], weight) for name, weight in weights.items())
    assert once == 6 + 1 < often  # once more in the probe before the checkpoint is written


@pytest.mark.slow
def test_a_tower_has_its_own_learning_rate_in_the_cold_start(tmp_path):
    one = ["sft.max_steps=1", "sft.warmup_steps=0", "sft.weight_decay=1e-9"]
    *_, plain = cold_start(tmp_path / "a", *one)
    *_, moved = cold_start(tmp_path / "b", *one, "optimizer.lr_factors={projector: 3}")
    for tower, step in plain.items():
        assert moved[tower] == pytest.approx(step * (3 if tower == "projector" else 1), rel=1e-2)
