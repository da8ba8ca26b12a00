"""Advantages, surrogates, divergences, aggregations, and the recipes made of them."""

import math
from dataclasses import replace

import pytest
import torch

from helpers.losses import (
    PUBLISHED,
    advantages_of,
    inputs_of,
    random_inputs,
    recipe_of,
    rewards_of,
    rollouts_of,
)
from vlmrl.algorithms import advantages
from vlmrl.algorithms import losses as divergences
from vlmrl.algorithms import losses as surrogates
from vlmrl.algorithms.losses import aggregate
from vlmrl.errors import UserError
from vlmrl.parts.algorithms.dapo import overlong_penalty
from vlmrl.schema import MicroBatch, PromptBatch, Rewards, Rollouts, TrainBatch
from vlmrl.training.dynamic_sampling import GroupSelection

# ------------------------------------------------------------------------------------ advantages


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("grpo", [1.5, -0.5, -0.5, -0.5]),
        ("dr_grpo", [0.75, -0.25, -0.25, -0.25]),
        ("dapo", [1.5, -0.5, -0.5, -0.5]),
        ("gpg", [0.75, -0.25, -0.25, -0.25]),
        ("rloo", [1.0, -1 / 3, -1 / 3, -1 / 3]),
    ],
)
def test_one_right_of_four_gives_the_published_advantages(name, expected):
    values = advantages_of(recipe_of(name), rewards_of([[1, 0, 0, 0]]))
    torch.testing.assert_close(values, torch.tensor([expected]), atol=1e-3, rtol=0)


def test_a_valid_reward_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="NaN"):
        advantages_of(recipe_of("grpo"), rewards_of([[math.nan, 0.0]]))


def test_deviation_is_unbiased_and_leaves_invalid_rollouts_out():
    rewards = torch.tensor([[1.0, 2.0, 4.0, 100.0]])
    valid = torch.tensor([[True, True, True, False]])
    expected = torch.tensor([1.0, 2.0, 4.0]).std()
    torch.testing.assert_close(advantages.deviation(rewards, valid)[0, 0], expected)


def test_uniform_groups_are_counted_over_the_batch_and_per_source():
    rewards = rewards_of([[1, 1], [0, 1], [0, 0], [1, 0]])
    rollouts = rollouts_of(rewards, sources=["easy", "easy", "hard", "other"])
    metrics = recipe_of("grpo").advantages(rewards, rollouts).metrics
    assert metrics == {
        "rollout/uniform_share": 0.5,
        "source/easy/uniform_share": 0.5,
        "source/hard/uniform_share": 1.0,
        "source/other/uniform_share": 0.0,
    }


def test_a_group_with_less_than_two_valid_rollouts_counts_as_uniform():
    valid = torch.tensor([[True, False], [False, False], [True, True]])
    rewards = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    assert advantages.uniform(rewards, valid).tolist() == [True, True, False]


def test_uniform_groups_stay_in_the_denominators_unless_groups_are_refilled():
    rewards = rewards_of([[1, 1], [0, 1]])
    rollouts = rollouts_of(rewards)
    plain = recipe_of("grpo").advantages(rewards, rollouts).kept
    refilled = recipe_of("grpo", dynamic_sampling_batches=2).advantages(rewards, rollouts).kept
    assert plain.tolist() == [[True, True], [True, True]]
    assert refilled.tolist() == [[False, False], [True, True]]
    assert recipe_of("dapo").keep(rewards).tolist() == [False, True]


def test_a_batch_without_groups_gives_no_advantages():
    empty = Rewards(torch.zeros(0, 4), torch.zeros(0, 4).bool(), ())
    out = recipe_of("dapo").advantages(empty, Rollouts(PromptBatch(()), ()))
    assert out.values.shape == out.kept.shape == out.weights.shape == (0, 4)


def test_gpg_scales_up_by_the_groups_that_carry_no_gradient():
    rewards = rewards_of([[1, 1], [0, 1], [0, 0], [0, 0]])
    out = recipe_of("gpg").advantages(rewards, rollouts_of(rewards))
    assert out.metrics["rollout/alpha"] == 4.0
    assert out.values[1].tolist() == [-2.0, 2.0]
    # A refilled batch counts informative groups only: there is nothing left to correct.
    refilled = recipe_of("gpg", dynamic_sampling_batches=1).advantages(
        rewards, rollouts_of(rewards)
    )
    assert refilled.values[1].tolist() == [-0.5, 0.5]


@pytest.mark.parametrize(
    ("share", "batches", "trained"), [(1.0, 3, 4), (0.75, 2, 3), (0.5, 2, 3), (0.25, 1, 1)]
)
def test_dynamic_sampling_stops_at_a_share_of_informative_groups(share, batches, trained):
    options = {"dynamic_sampling_batches": 5, "dynamic_sampling_share": share}
    recipe = recipe_of("gpg", aggregation="sequence", **options)
    drawn = [[[0, 1], [1, 1], [0, 0], [0, 0]], [[1, 1], [1, 0], [0, 1], [0, 0]], [[0, 1]] * 4]
    groups = GroupSelection(recipe, 0.0)
    for rows in drawn:
        rewards = replace(rewards_of(rows), verdicts=(({}, {}),) * 4)
        groups.add(rollouts_of(rewards), rewards)
        if not groups.is_short:
            break
    rollouts, rewards, metrics = groups.join()
    assert (metrics["rollout/batches"], len(rollouts.completions)) == (batches, trained)
    assert metrics["rollout/groups_short"] == 0
    found = recipe.advantages(rewards, rollouts)
    # GPG's code fills up with uniform groups to four and multiplies by alpha, 4 / trained: the same mean.
    filled = torch.cat([rewards.total, torch.zeros(4 - trained, 2)])
    published = 4 / trained * (filled - filled.mean(-1, keepdim=True)) / filled.numel()
    torch.testing.assert_close(found.values / rewards.total.numel(), published[:trained])


def test_a_mean_over_prompts_is_that_of_a_plain_loop_however_groups_are_cut():
    """ScaleRL: the mean over all tokens of a prompt's completions, then over prompts."""
    lengths, prompts = [3, 5, 1, 2, 4], [0, 0, 1, 1, 1]
    noise = torch.Generator().manual_seed(0)
    new = -torch.rand(5, 5, generator=noise)
    values = torch.randn(5, 1, generator=noise)
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    posed = rollouts_of(rewards_of([[0], [1]])).batch.prompts

    def gradient(cuts):
        micro = [
            MicroBatch(
                tuple(posed[p] for p in sorted({prompts[i] for i in rows})),
                torch.tensor([sorted({prompts[j] for j in rows}).index(prompts[i]) for i in rows]),
                torch.zeros(len(rows), 5).long(),
                mask[rows],
                new[rows],
                values[rows],
                torch.ones(len(rows)),
            )
            for rows in cuts
        ]
        recipe = recipe_of("cispo", aggregation="prompt")
        (batch,) = recipe.prepare([TrainBatch(tuple(micro), sum(lengths), 5, 5)])
        slope, total = torch.zeros(5, 5), 0.0
        for rows, part in zip(cuts, batch.micro, strict=True):
            own = new[rows].requires_grad_()
            given = inputs_of(own, values[rows], mask=mask[rows], weights=part.weights)
            found = recipe.loss(replace(given, num_tokens=sum(lengths), num_rollouts=5)).loss
            slope[rows] = torch.autograd.grad(found, own)[0]
            total += found.item()
        return total, slope

    total, slope = 0.0, torch.zeros(5, 5)
    for p in (0, 1):
        rows = [i for i in range(5) if prompts[i] == p]
        tokens = sum(lengths[i] for i in rows)
        for i in rows:
            for t in range(lengths[i]):
                total += -float(values[i] * new[i, t]) / tokens / 2
                slope[i, t] = -float(values[i]) / tokens / 2
    for cuts in ([[0, 1, 2, 3, 4]], [[2, 0], [4, 1], [3]]):
        found = gradient(cuts)
        assert found[0] == pytest.approx(total, abs=1e-6)
        torch.testing.assert_close(found[1], slope)


def test_on_policy_k3_as_a_loss_has_the_gradient_of_the_forward_divergence():
    """Its mean over what the policy samples; k2's is that of the reverse divergence."""
    noise = torch.Generator().manual_seed(0)
    logits, other = (torch.randn(6, generator=noise).double() for _ in range(2))
    logits.requires_grad_()
    policy, reference = logits.log_softmax(-1), other.log_softmax(-1)
    expected_of = {
        "k3": (reference.exp() * (reference - policy)).sum(),
        "k2": (policy.exp() * (policy - reference)).sum(),
    }
    for name, divergence in expected_of.items():
        each = divergences.ESTIMATORS[name](reference - policy)
        expected = (policy.detach().exp() * each).sum()
        ours, theirs = (
            torch.autograd.grad(x, logits, retain_graph=True)[0] for x in (expected, divergence)
        )
        torch.testing.assert_close(ours, theirs)


def test_long_completions_are_punished_as_published():
    lengths = torch.tensor([0, 16384, 18432, 20480, 20481])
    assert overlong_penalty(lengths, 20480, 4096).tolist() == [0.0, 0.0, -0.5, -1.0, -1.0]


def test_dapo_adds_the_punishment_to_valid_rewards_only():
    rewards = rewards_of([[1, 0.5]], torch.tensor([[True, False]]))
    rollouts = rollouts_of(rewards, length=9)
    shaped = recipe_of("dapo").shape(rewards, rollouts, max_tokens=10)
    assert shaped.total.tolist() == [[0.5, 0.0]]
    assert recipe_of("dapo", overlong_share=0).shape(rewards, rollouts, 10) is rewards
    assert recipe_of("grpo").shape(rewards, rollouts, 10) is rewards


# ---------------------------------------------------------------------------- surrogates and KL


def test_clipping_stops_the_gradient_only_where_it_would_move_further_away():
    old = torch.zeros(1, 4)
    new = torch.tensor([[0.5, -0.5, 0.5, -0.5]], requires_grad=True)
    given = torch.tensor([[1.0, 1.0, -1.0, -1.0]])
    mask = torch.ones(1, 4).bool()
    ratio = surrogates.log_ratio(new, old, mask).exp()
    losses = surrogates.clipped(ratio, given, clip_low=0.2, clip_high=0.28)
    losses.sum().backward()
    assert losses[0].tolist() == pytest.approx([-1.28, -math.exp(-0.5), math.exp(0.5), 0.8])
    assert (new.grad[0] != 0).tolist() == [False, True, True, False]


def test_dual_clip_bounds_the_loss_of_a_bad_completion():
    ratio = torch.tensor([100.0])
    bad, good = torch.tensor([-1.0]), torch.tensor([1.0])
    assert surrogates.clipped(ratio, bad, 0.2, 0.2).item() == 100.0
    assert surrogates.clipped(ratio, bad, 0.2, 0.2, dual_clip=3.0).item() == 3.0
    assert surrogates.clipped(ratio, good, 0.2, 0.2, dual_clip=3.0).item() == pytest.approx(-1.2)


def test_the_estimators_have_the_divergence_as_mean_and_k2_its_gradient():
    logits = torch.randn(7, generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    ref = torch.randn(7, generator=torch.Generator().manual_seed(1)).double().log_softmax(0)
    new = logits.log_softmax(0)
    chance = new.exp().detach()
    exact = (new.exp() * (new - ref)).sum()
    (gradient,) = torch.autograd.grad(exact, logits, retain_graph=True)

    every = torch.ones(7).bool()
    means = {k: (chance * divergences.kl(k, new, ref, every)).sum() for k in ("k1", "k2", "k3")}
    torch.testing.assert_close(means["k1"], exact)
    torch.testing.assert_close(means["k3"], exact)
    (of_k1,) = torch.autograd.grad(means["k1"], logits, retain_graph=True)
    (of_k2,) = torch.autograd.grad(means["k2"], logits)
    torch.testing.assert_close(of_k1, torch.zeros(7).double())
    torch.testing.assert_close(of_k2, gradient)


def test_the_unbiased_divergence_has_the_divergences_own_gradient():
    logits = torch.randn(7, generator=torch.Generator().manual_seed(0)).requires_grad_()
    ref = torch.randn(7, generator=torch.Generator().manual_seed(1)).log_softmax(0)
    new = logits.log_softmax(0)
    exact = (new.exp() * (new - ref)).sum()
    (expected,) = torch.autograd.grad(exact, logits, retain_graph=True)

    # Every outcome is a completion of one token, weighted by its probability.
    inputs = inputs_of(
        new[:, None],
        torch.zeros(7, 1),
        ref=ref[:, None],
        weights=7 * new.exp().detach(),
    )
    loss = recipe_of("grpo", kl=1.0, kl_unbiased=True).loss(inputs).loss
    (gradient,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(gradient, expected, atol=1e-6, rtol=1e-5)


def test_aggregations_divide_as_their_papers_say():
    losses = torch.tensor([[1.0, 2.0, 3.0], [4.0, 9.0, 9.0]])
    mask = torch.tensor([[True, True, True], [True, False, False]])
    weights = torch.tensor([1.0, 0.5])

    def total(how):
        return aggregate(how, losses, mask, weights, 4, 2, max_tokens=10).item()

    assert total("sequence") == pytest.approx((2.0 + 0.5 * 4.0) / 2)
    assert total("token") == pytest.approx((6.0 + 0.5 * 4.0) / 4)
    assert total("constant") == pytest.approx((6.0 + 0.5 * 4.0) / 20)


# --------------------------------------------------------------------------------------- recipes


@pytest.mark.parametrize("name", PUBLISHED)
def test_on_policy_gradient_is_the_plain_policy_gradient(name):
    recipe = recipe_of(name)
    new = (-torch.rand(3, 5, generator=torch.Generator().manual_seed(0)) - 1).requires_grad_()
    mask = torch.arange(5) < torch.tensor([5, 2, 3])[:, None]
    given = torch.tensor([[1.0], [-0.5], [0.25]])
    recipe.loss(inputs_of(new, given, mask=mask)).loss.backward()
    lengths = mask.sum(-1, keepdim=True)
    share = {
        "grpo": 1 / (3 * lengths),
        "dr_grpo": torch.full((3, 1), 1 / 15),
        "dapo": torch.full((3, 1), 1 / 10),
        "gpg": torch.full((3, 1), 1 / 10),
        "rloo": torch.full((3, 1), 1 / 3),
    }[name]
    torch.testing.assert_close(new.grad, torch.where(mask, -given * share, 0.0))


@pytest.mark.parametrize("name", ["dapo", "dr_grpo", "grpo", "rloo"])
def test_metrics_are_sums_over_loss_tokens(name):
    new = torch.tensor([[0.5, -9.0], [-0.5, 0.0], [0.0, 0.0]]).requires_grad_()
    mask = torch.tensor([[True, False], [True, False], [True, True]])
    given = torch.tensor([[1.0], [-1.0], [1.0]])
    ref = torch.zeros(3, 2)
    inputs = inputs_of(new, given, old=torch.zeros(3, 2), mask=mask, ref=ref)
    metrics = recipe_of(name, kl=0.1, kl_estimator="k1").loss(inputs).metrics
    assert {key: value.item() for key, value in metrics.items()} == pytest.approx(
        {
            "loss/ratio": math.exp(0.5) + math.exp(-0.5) + 2,
            "loss/clip_low": 1.0,
            "loss/clip_high": 1.0,
            "loss/kl": 0.0,
        },
        abs=1e-6,
    )


def test_a_divergence_without_a_reference_is_refused():
    with pytest.raises(ValueError, match="reference"):
        recipe_of("grpo", kl=0.1).loss(random_inputs(ref=None))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("grpo", {"clip_lo": 0.1}, "clip_low"),
        ("grpo", {"clip_low": 0}, "expected clip_low in"),
        ("grpo", {"clip_high": 0}, "expected a positive clip_high"),
        ("grpo", {"dual_clip": 1.1}, "expected dual_clip greater"),
        ("grpo", {"kl": -0.1}, "expected kl of at least"),
        ("grpo", {"kl": math.nan}, "finite"),
        ("grpo", {"kl_estimator": "k4"}, "kl_estimator"),
        ("grpo", {"aggregation": "tokens"}, "aggregation"),
        ("gpg", {"clip_low": 0.2}, "no option 'clip_low'"),
        ("gpg", {"importance_cap": 0}, "expected a positive importance_cap"),
        ("dapo", {"dynamic_sampling_batches": -1}, "expected dynamic_sampling_batches of at least"),
        ("dapo", {"overlong_share": 1.5}, "expected overlong_share in"),
        ("rloo", {"aggregation": "token"}, "aggregation"),
    ],
)
def test_a_choice_that_makes_no_sense_is_refused_by_name(name, options, words):
    with pytest.raises(UserError, match=words):
        recipe_of(name, **options)
