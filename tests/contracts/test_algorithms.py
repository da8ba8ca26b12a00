"""What must hold of every algorithm: laws of advantages, and of losses under hostile inputs.

A comparison with numbers of a paper, or with another implementation, is `tests/algorithms`.
"""

import math
import typing
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.contracts import require
from helpers.losses import (
    advantages_of,
    inputs_of,
    random_inputs,
    recipe_of,
    rewards_of,
    rollouts_of,
)
from vlmrl import plugins
from vlmrl.algorithms.base import LossOutput
from vlmrl.algorithms.recipes import Recipe
from vlmrl.runs import metrics

KIND = "algorithm"
SUBSETS = {
    "part": lambda cls: True,
    "relative": lambda cls: cls().only_uniform_is_silent,
    "centred": lambda cls: cls().baseline in ("mean", "leave_one_out"),
}
"""`relative`: a uniform group says nothing to them; `centred`: the baseline is of the group."""


def test_it_is_a_recipe_that_builds_without_options(part, loaded):
    require(issubclass(loaded, Recipe), part, "derive it from vlmrl.algorithms.recipes.Recipe")
    required = [name for name, option in plugins.options_of(loaded).items() if option.required]
    require(not required, part, f"give {required} the published defaults")
    written = loaded.surrogate is not Recipe.surrogate
    require(written, part, "define surrogate(inputs), the loss of each token, [B, T]")
    source = (
        "say in the module's docstring where it is from: `Source: <paper>, arXiv <id>, eq. <n>.`"
    )
    module = __import__(loaded.__module__, fromlist=["_"])
    require("Source:" in (module.__doc__ or "") + (loaded.__doc__ or ""), part, source)
    out = recipe_of(part).loss(random_inputs(ref=None))
    require(isinstance(out, LossOutput) and out.loss.ndim == 0, part, "loss returns a LossOutput")


def test_it_describes_its_metrics(part, loaded):
    rewards = rewards_of([[1, 0], [0.5, 0]])
    recipe = recipe_of(part, kl=0.1)
    returned = {**recipe.advantages(rewards, rollouts_of(rewards)).metrics}
    returned |= recipe.loss(random_inputs()).metrics
    for name in returned:
        line = loaded.metrics.get(name) or metrics.describe(name)
        require(line, part, f"say in the class variable `metrics` what {name!r} is")
    for name, line in loaded.metrics.items():
        shared = name in metrics.STEP
        require(not shared, part, f"{name!r} has a line in metric_glossary.py: leave it out")
        require(line.endswith("."), part, f"the line on {name!r} is a sentence, got {line!r}")


def test_shares_of_micro_batches_add_up_to_the_loss_of_the_batch(part):
    whole = random_inputs(ref=None)
    recipe_of(part).loss(whole).loss.backward()
    cut = random_inputs(ref=None)
    total = 0.0
    for rows in (slice(0, 1), slice(1, 4)):
        piece = type(cut)(
            **{
                name: getattr(cut, name)[rows]
                for name in ("new", "old", "sampling", "advantages", "mask", "weights")
            },
            ref=None,
            num_tokens=cut.num_tokens,
            num_rollouts=cut.num_rollouts,
            max_tokens=cut.max_tokens,
            extra={name: value[rows] for name, value in cut.extra.items()},
        )
        loss = recipe_of(part).loss(piece).loss
        total += loss.item()
        loss.backward()
    assert total == pytest.approx(recipe_of(part).loss(whole).loss.item(), rel=1e-5, abs=1e-7)
    torch.testing.assert_close(cut.new.grad, whole.new.grad)


groups = st.lists(
    st.lists(st.floats(-5, 5, width=32), min_size=4, max_size=4), min_size=1, max_size=4
)


@given(rows=groups, random=st.randoms(use_true_random=False))
def test_shuffling_a_group_permutes_its_advantages(part, rows, random):
    order = random.sample(range(4), 4)
    recipe = recipe_of(part)
    values = advantages_of(recipe, rewards_of(rows))
    shuffled = advantages_of(recipe, rewards_of([[row[i] for i in order] for row in rows]))
    torch.testing.assert_close(shuffled, values[:, order])


@given(rows=groups, flags=st.lists(st.booleans(), min_size=4, max_size=4))
def test_an_invalid_rollout_has_no_say_whatever_its_reward(part, rows, flags):
    valid = torch.tensor([flags] * len(rows))
    broken = torch.where(valid, torch.tensor(rows), math.nan).tolist()
    recipe = recipe_of(part)
    values = advantages_of(recipe, rewards_of(broken, valid))
    assert torch.isfinite(values).all()
    assert (values[~valid] == 0).all()
    if any(flags):
        alone = advantages_of(recipe, rewards_of(torch.tensor(rows)[:, flags].tolist()))
        torch.testing.assert_close(values[valid], alone.flatten())


@given(rows=groups)
def test_advantages_of_a_group_add_up_to_zero(centred, rows):
    values = advantages_of(recipe_of(centred), rewards_of(rows))
    assert values.sum(-1).abs().max() < 1e-4


@pytest.mark.parametrize("row", [[0.1] * 8, [0.0] * 8, [0.3, 0.3 + 5e-7]])
def test_uniform_group_has_advantage_exactly_zero(relative, row):
    assert (advantages_of(recipe_of(relative), rewards_of([row])) == 0).all()


def test_a_batch_without_groups_has_advantages_of_none(part):
    none = torch.zeros(0, 4)
    rewards = replace(rewards_of([[0.0] * 4]), total=none, valid=none.bool(), verdicts=())
    assert len(recipe_of(part).advantages(rewards, rollouts_of(rewards)).values) == 0


def test_a_group_of_one_has_advantage_zero(relative):
    valid = torch.tensor([[False, True, False]])
    assert (advantages_of(recipe_of(relative), rewards_of([[0.7]])) == 0).all()
    assert (advantages_of(recipe_of(relative), rewards_of([[0.1, 0.9, 0.5]], valid)) == 0).all()


def test_uniform_group_has_no_gradient(relative):
    rewards = rewards_of([[0.4, 0.4, 0.4, 0.4]])
    values = advantages_of(recipe_of(relative), rewards)
    inputs = random_inputs(ref=None)
    # On-policy: a term that pulls to the old policy (kimi) is felt by every group that left it.
    inputs = inputs_of(inputs.new, values.view(4, 1), mask=inputs.mask)
    recipe_of(relative).loss(inputs).loss.backward()
    assert (inputs.new.grad == 0).all()


def test_a_recipe_that_learns_from_uniform_groups_counts_those_without_a_gradient(part):
    recipe = recipe_of(part)
    if "teacher" in recipe.own_passes:
        assert advantages_of(recipe, rewards_of([[0.0, 1.0]])).count_nonzero() == 0
        pytest.skip("its advantages are a teacher's, and are made in prepare")
    for rows in ([[1.0] * 4], [[0.0] * 4], [[1.0, 0.0, 0.0, 1.0], [1.0] * 4]):
        rewards = rewards_of(rows)
        found = recipe.advantages(rewards, rollouts_of(rewards))
        silent = (found.values == 0).flatten(1).all(-1).float().mean().item()
        name = "uniform_share" if recipe.only_uniform_is_silent else "silent_share"
        assert found.metrics[f"rollout/{name}"] == pytest.approx(silent)
        assert ((found.values != 0).flatten(1).any(-1) <= recipe.keep(rewards)).all()


def test_sample_weights_multiply_the_loss_of_their_completions(part):
    rewards = rewards_of([[1, 0], [0, 1]])
    rollouts = rollouts_of(rewards, weights=[1.0, 3.0])
    weights = recipe_of(part).advantages(rewards, rollouts).weights
    assert weights.tolist() == [[1.0, 1.0], [3.0, 3.0]]

    gradients = []
    for w in (torch.ones(4), weights.flatten()):
        inputs = random_inputs(weights=w)
        recipe_of(part, kl=0.1).loss(inputs).loss.backward()
        gradients.append(inputs.new.grad)
    torch.testing.assert_close(gradients[1], weights.view(4, 1) * gradients[0])


def test_nothing_outside_the_mask_matters(part):
    clean = random_inputs()
    results = []
    for junk in (0.0, -1e30, math.nan):
        changed = {
            key: torch.where(clean.mask, getattr(clean, key).detach(), junk)
            for key in ("new", "old", "sampling", "ref")
        }
        new = changed.pop("new").requires_grad_()
        inputs = inputs_of(new, clean.advantages, mask=clean.mask, **changed)
        out = recipe_of(part, kl=0.1, kl_unbiased=True).loss(inputs)
        out.loss.backward()
        results.append((out.loss.detach(), new.grad, *out.metrics.values()))
    assert all(torch.isfinite(value).all() for value in results[0])
    assert (results[0][1][~clean.mask] == 0).all()
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], atol=0, rtol=0)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_log_probs_that_are_far_apart_give_finite_losses_and_gradients(part, estimator):
    inputs = random_inputs(spread=300.0)
    out = recipe_of(part, kl=0.1, kl_estimator=estimator).loss(inputs)
    out.loss.backward()
    assert torch.isfinite(out.loss)
    assert torch.isfinite(inputs.new.grad).all()
    assert all(torch.isfinite(value) for value in out.metrics.values())


def test_the_importance_weight_is_truncated_and_one_for_an_exact_engine(part):
    exact = random_inputs(ref=None)
    exact = inputs_of(exact.new, exact.advantages, old=exact.old, mask=exact.mask)
    plain = recipe_of(part).loss(exact).loss.item()
    # Where `corrected` is its own, the weight is no factor of the loss.
    factors = type(recipe_of(part)).corrected is Recipe.corrected
    for shift, factor in ((math.log(1.5), 1.5), (8.0, 2.0), (-math.log(4), 0.25)) * factors:
        # One token each, so that a completion's weight is its token's.
        one = inputs_of(torch.full((2, 1), -1.0), torch.tensor([[1.0], [-0.5]]))
        moved = inputs_of(one.new, one.advantages, sampling=one.old - shift)
        expected = factor * recipe_of(part).loss(one).loss.item()
        found = recipe_of(part).loss(moved).loss.item()
        sentence = "multiply the loss by self.importance(log of old / sampling probability)"
        require(found == pytest.approx(expected, rel=1e-5), part, sentence)
    assert recipe_of(part, importance_cap=1e-6).loss(exact).loss.abs() <= 2e-6 * abs(plain)


def test_on_policy_all_corrections_have_the_gradient_of_none(part):
    gradients = []
    corrections = typing.get_args(plugins.options_of(type(recipe_of(part)))["correction"].type)
    for correction in corrections:
        like = random_inputs(ref=None)
        inputs = inputs_of(like.new, like.advantages, mask=like.mask)
        recipe_of(part, correction=correction).loss(inputs).loss.backward()
        gradients.append(inputs.new.grad)
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0])
