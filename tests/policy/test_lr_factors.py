"""Learning rates of single towers."""

import pytest

from helpers.shared_forward import packed, rollouts_of
from helpers.small import policy
from vlmrl.config import OptimizerConfig
from vlmrl.errors import UserError
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.policy.optimizers import adamw
from vlmrl.policy.trainable import tower_of, towers_with_lr


def moved(factors):
    """How far each tower moves in one step of AdamW, whose first step is the learning rate itself."""
    made = policy()
    config = OptimizerConfig(lr=1e-3, lr_factors=factors, max_grad_norm=1e9)
    towers = towers_with_lr(made.named, made.family, factors)
    made.use_optimizer(adamw(made.trainable, lr=1e-3, eps=1e-20, towers=towers), config)
    before = {name: p.detach().clone() for name, p in made.named.items()}
    made.update(packed(rollouts_of(made)), Grpo(), lr=1e-3, progress=0.0)
    largest = {}
    for name, weight in made.named.items():
        tower = tower_of(name, made.family)
        step = (weight - before[name]).abs().max().item()
        largest[tower] = max(largest.get(tower, 0.0), step)
    groups = made.optimizer.param_groups
    assert sum(len(g["params"]) for g in groups) == len(made.trainable)
    return largest, groups


def test_a_tower_moves_by_its_own_learning_rate():
    plain, groups = moved({})
    assert len(groups) == 2 and "tower" not in groups[0]
    found, groups = moved({"vision": 0.1, "projector": 2.0})
    assert len(groups) == 6
    factor = {"vision": 0.1, "projector": 2.0}
    for tower, step in plain.items():
        assert found[tower] == pytest.approx(step * factor.get(tower, 1.0), rel=1e-2), tower


def test_a_tower_that_does_not_train_is_refused():
    made = policy(freeze=["vision"])
    with pytest.raises(
        UserError, match=r"lr_factors: expected a tower that trains, one of .* got 'vision'"
    ):
        towers_with_lr(made.named, made.family, {"vision": 0.5})
    assert towers_with_lr(made.named, made.family, {}) == []
