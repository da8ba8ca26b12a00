"""The named recipes against numbers of their papers, and slow versions in plain Python."""

from __future__ import annotations

import dataclasses
import math
import statistics

import pytest
import torch

from helpers.losses import (
    advantages_of,
    inputs_of,
    random_inputs,
    recipe_of,
    rewards_of,
    rollouts_of,
)
from vlmrl import plugins
from vlmrl.errors import UserError
from vlmrl.parts.algorithms.bnpo import beta_log_density, fitted
from vlmrl.parts.algorithms.fipo import discounted
from vlmrl.schema import Verdict

# ------------------------------------------------------------------------------------ advantages


@pytest.mark.parametrize(
    ("name", "rewards", "expected"),
    [
        ("raft", [1, 0, 0, 0], [1, 0, 0, 0]),
        ("raft", [1, 1, 1, 1], [1, 1, 1, 1]),
        ("raft", [-1, 0.5, 0, 0], [0, 0.5, 0, 0]),
        ("raft_pp", [1, 1, 0, 0], [1, 1, 0, 0]),
        ("reinforce_rej", [1, 0, 0, 0], [1, -1, -1, -1]),
        ("reinforce_rej", [1, 1, 1, 1], [0, 0, 0, 0]),
        ("w_reinforce", [1, 0, 0, 0], [0.1, -1, -1, -1]),
        ("nsr", [1, 0, 0, 0], [0, -1, -1, -1]),
        ("nsr", [0, 0, 0, 0], [-1, -1, -1, -1]),
        ("psr", [1, 0, 0, 0], [1, 0, 0, 0]),
        ("kimi", [1, 0, 0, 0], [0.75, -0.25, -0.25, -0.25]),
        ("gspo", [1, 0, 0, 0], [1.5, -0.5, -0.5, -0.5]),
        ("cispo", [1, 0, 0, 0], [1.5, -0.5, -0.5, -0.5]),
    ],
)
def test_advantages_are_those_of_the_paper(name, rewards, expected):
    values = advantages_of(recipe_of(name), rewards_of([rewards]))
    torch.testing.assert_close(values, torch.tensor([expected]).float(), atol=1e-3, rtol=0)


@pytest.mark.parametrize("scale", ["std", "none"])
def test_share_grpo_adds_what_its_code_adds(scale):
    """As its code: each completion is there once behind either prompt, with a share of its own behind one."""
    rows = [[1.0, 0.0, 0.5, 0.0, 1.0, 1.0], [0.2, 0.2, 0.2, 0.0, 1.0, 0.0], [1.0, 0.0, 1, 1, 0, 0]]
    rewards = rewards_of(rows)
    plain = rollouts_of(rewards)
    groups = [
        tuple(c.with_origin("distortion") if p < 2 and g >= 3 else c for g, c in enumerate(group))
        for p, group in enumerate(plain.completions)
    ]
    rollouts = dataclasses.replace(plain, completions=tuple(groups))
    found = recipe_of("share_grpo", scale=scale).advantages(rewards, rollouts).values

    def against(values, value):
        gap = value - statistics.fmean(values)
        return gap / (statistics.stdev(values) + 1e-4) if scale == "std" else gap

    for p, row in enumerate(rows):
        for g, value in enumerate(row):
            expected = against(row, value)
            if p < 2 and g < 3:
                expected += against(row[:3], value)
            assert float(found[p, g]) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("size", [5, 16])
def test_brpo_drops_the_groups_that_nearly_all_win_or_lose(size):
    rows = [[0.0] + [1.0] * wins + [-1.0] * (size - 1 - wins) for wins in range(size)]
    found = recipe_of("brpo").advantages(rewards_of(rows), rollouts_of(rewards_of(rows)))
    for row, values, kept in zip(rows, found.values.tolist(), found.kept.tolist(), strict=True):
        drops = abs(sum(row)) > 0.6 * size
        assert kept == [not drops] * size
        assert values == ([0.0] * size if drops else row)
    assert {all(kept) for kept in found.kept.tolist()} == {True, False}


def test_best_of_n_imitates_the_first_best_completion_of_each_group():
    rewards = rewards_of([[0.5, 1, 1, 0], [-1, 0, -2, 0]])
    values = advantages_of(recipe_of("raft", only_best=True), rewards)
    assert values.tolist() == [[0, 1, 0, 0], [0, 0, 0, 0]]


def test_the_batchs_deviation_is_that_of_all_valid_rewards():
    rewards = rewards_of([[1, 0, 0, 0], [1, 1, 1, 0]])
    expected = 0.75 / (torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 0]).std() + 1e-4)
    assert advantages_of(recipe_of("grpo", scale="batch"), rewards)[0, 0] == pytest.approx(expected)
    same = recipe_of("grpo", scale="batch", aggregation="token")
    torch.testing.assert_close(
        advantages_of(same, rewards), advantages_of(recipe_of("lite_ppo"), rewards), atol=0, rtol=0
    )


def test_baselines_of_the_batch_and_none_let_uniform_groups_teach():
    rewards = rewards_of([[1, 1], [0, 0]])
    batch = recipe_of("grpo", baseline="batch", scale="none")
    assert advantages_of(batch, rewards).tolist() == [[0.5, 0.5], [-0.5, -0.5]]
    none = recipe_of("grpo", baseline="none", scale="none", dynamic_sampling_batches=1)
    found = none.advantages(rewards, rollouts_of(rewards))
    assert found.values.tolist() == [[1, 1], [0, 0]]
    assert found.kept.tolist() == [[True, True], [False, False]]
    assert found.metrics["rollout/uniform_share"] == 1.0
    assert found.metrics["rollout/silent_share"] == 0.5


def test_only_recipes_without_a_group_in_their_estimate_take_groups_of_one():
    names = plugins.names("algorithm")
    alone = {name for name in names if recipe_of(name).smallest_group == 1}
    assert alone >= {"raft", "raft_pp", "w_reinforce", "nsr", "psr", "stable_reinforce"}
    assert not alone & {"grpo", "rloo", "gdpo", "bnpo", "pass_at_k", "reinforce_rej", "kimi"}


def test_a_recipe_that_punishes_draws_again_only_for_groups_that_are_all_right():
    rewards = rewards_of([[1, 1], [0, 0], [1, 0]])
    assert recipe_of("nsr").keep(rewards).tolist() == [False, True, True]
    assert recipe_of("w_reinforce").keep(rewards).tolist() == [True, True, True]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("grpo", {"baseline": "none"}, "expected scale batch or none"),
        ("gmpo", {"clip_low": 0}, "expected a positive clip_low"),
        ("cispo", {"ratio_cap": 0}, "expected a positive ratio_cap"),
        ("sapo", {"steepness_bad": 0}, "expected a positive steepness_bad"),
        ("fipo", {"half_life": 0}, "expected a positive half_life"),
        ("fipo", {"most_influence": 0.5}, "expected most_influence of at least 1"),
        ("kimi", {"tau": -1}, "expected tau of at least 0"),
        ("raft", {"baseline": "mean"}, "baseline"),
        ("bnpo", {"lowest": 1.0}, "expected lowest below highest"),
        ("bnpo", {"max_factor": 0}, "expected a positive max_factor"),
        ("stable_reinforce", {"max_ratio": 1.0}, "expected max_ratio above 1"),
        ("stable_reinforce", {"max_deviations": 0}, "expected a positive max_deviations"),
    ],
)
def test_a_choice_that_makes_no_sense_is_refused_by_name(name, options, words):
    with pytest.raises(UserError, match=words):
        recipe_of(name, **options)


def test_rewards_are_whitened_over_the_batch_and_outliers_left_out():
    rewards = rewards_of([[0.0], [1.0], [1.0], [0.0]])
    found = advantages_of(recipe_of("stable_reinforce"), rewards)
    torch.testing.assert_close(
        found[:, 0], torch.tensor([-1.0, 1, 1, -1]) * 0.8660, atol=2e-4, rtol=0
    )
    # 19 of 20 are equal: the last is 4.25 deviations away, the others 0.22.
    one = advantages_of(recipe_of("stable_reinforce"), rewards_of([[0.0] * 19 + [1.0]]))
    assert one[0, -1] == 0 and one[0, 0].item() == pytest.approx(-0.2236, abs=2e-4)


def test_the_pre_clip_bounds_a_bad_completions_loss_and_its_gradient():
    new = torch.tensor([[12.0, 0.0, 9.0]]).requires_grad_()
    mask = torch.tensor([[True, True, False]])
    far = inputs_of(new, -torch.ones(1, 1), old=torch.tensor([[0.0, 0.0, math.nan]]), mask=mask)
    losses, _ = recipe_of("stable_reinforce").policy_loss(far)
    losses[mask].sum().backward()
    assert losses[mask].tolist() == pytest.approx([1000.0, 1.0], rel=1e-5)
    assert new.grad[0].tolist() == pytest.approx([0.0, 1.0, 0.0])


def test_a_beta_density_is_fitted_to_the_pass_rates_of_the_batch():
    # Pass rates .25 and .75: mean .5, variance .125, so a = b = .5 and alpha = beta = 7/6.
    assert fitted(torch.tensor([0.25, 0.75])) == pytest.approx((7 / 6, 7 / 6))
    alpha = torch.tensor([7 / 6])
    density = torch.distributions.Beta(alpha, alpha).log_prob(torch.tensor([0.25])).exp().item()
    found = advantages_of(recipe_of("bnpo"), rewards_of([[1, 0, 0, 0], [1, 1, 1, 0]]))
    assert found[0].tolist() == pytest.approx([0.75 / density] + [-0.25 / density] * 3, rel=1e-4)
    # One group says nothing of the others: REINFORCE with a baseline.
    assert advantages_of(recipe_of("bnpo"), rewards_of([[1, 0]])).tolist() == [[0.5, -0.5]]
    # alpha = beta = 3/2 is GRPO with the population's deviation, times pi / 8.
    assert beta_log_density(torch.tensor(0.25), 1.5, 1.5).exp().item() == pytest.approx(
        8 / math.pi * math.sqrt(0.25 * 0.75)
    )


def of_verifiers(**scores):
    """Rewards [P, G] of verifiers by name; None is a verifier that does not apply."""
    tables = list(scores.values())
    total = [
        [sum(t[p][g] or 0.0 for t in tables) for g in range(len(row))]
        for p, row in enumerate(tables[0])
    ]
    verdicts = tuple(
        tuple(
            {
                name: Verdict.not_applicable() if t[p][g] is None else Verdict(t[p][g])
                for name, t in scores.items()
            }
            for g in range(len(row))
        )
        for p, row in enumerate(tables[0])
    )
    return dataclasses.replace(rewards_of(total), verdicts=verdicts)


def test_rewards_that_are_normalised_one_by_one_do_not_collapse():
    # Figure 2 of the paper: sums (0, 1) and (0, 2) are one to GRPO, two to GDPO.
    rewards = of_verifiers(a=[[0.0, 1.0], [0.0, 1.0]], b=[[0.0, 0.0], [0.0, 1.0]])
    grpo = advantages_of(recipe_of("grpo"), rewards)
    torch.testing.assert_close(grpo[0], grpo[1], atol=1e-3, rtol=0)
    found = advantages_of(recipe_of("gdpo"), rewards)
    torch.testing.assert_close(found[1], 2 * found[0], atol=1e-3, rtol=0)
    unlike = of_verifiers(a=[[0.0, 1.0, 0.5]], b=[[1.0, 0.0, 0.5]])
    assert advantages_of(recipe_of("gdpo", weights={"b": 0.5}), unlike)[0, 1] > 0
    assert advantages_of(recipe_of("grpo"), unlike).tolist() == [[0.0, 0.0, 0.0]]


def test_a_verifier_that_does_not_apply_has_no_part_in_gdpo():
    rewards = of_verifiers(a=[[0.0, 1.0]], b=[[None, None]])
    torch.testing.assert_close(
        advantages_of(recipe_of("gdpo"), rewards),
        torch.tensor([[-1.0, 1.0]]) / math.sqrt(2),
        atol=1e-3,
        rtol=0,
    )


def test_the_optimal_baseline_is_weighted_by_lengths():
    rewards = rewards_of([[1, 0, 0], [1, 1, 1]])
    rollouts = rollouts_of(rewards)
    long, short = (
        dataclasses.replace(rollouts.completions[0][0], token_ids=(0,) * n) for n in (6, 2)
    )
    unlike = dataclasses.replace(rollouts, completions=((long, short, short),) * 2)
    found = recipe_of("opo").advantages(rewards, unlike).values
    # (6 * 1 + 2 * 0 + 2 * 0) / 10 = 0.6
    torch.testing.assert_close(found, torch.tensor([[0.4, -0.6, -0.6], [0, 0, 0]]))


def test_only_the_best_of_a_group_is_reinforced_by_its_lead():
    rewards = rewards_of([[0.2, 1.0, 0.5], [1.0, 1.0, 0.0], [0.0, 0.0, 0.7]])
    found = advantages_of(recipe_of("pass_at_k"), rewards)
    torch.testing.assert_close(found, torch.tensor([[0, 0.5, 0], [0, 0, 0], [0, 0, 0.7]]))


# ---------------------------------------------------------------------------------------- losses


def slow_losses(name, new, old, advantage) -> list[float]:
    """Losses of one completion's tokens, with the recipe's published defaults."""
    logs = [n - o for n, o in zip(new, old, strict=True)]
    mean, whole = sum(logs) / len(logs), sum(logs)
    if name in ("gspo", "gspo_token", "luspo"):
        ratio = math.exp(mean)
        held = min(max(ratio, 1 - 3e-4), 1 + 4e-4)
        return [-min(ratio * advantage, held * advantage)] * len(new)
    if name == "gmpo":
        held = [min(x, 0.4) if advantage > 0 else max(x, -0.4) for x in logs]
        return [-math.exp(sum(held) / len(held)) * advantage] * len(new)
    if name == "cispo":
        return [-min(math.exp(x), 5) * advantage * n for x, n in zip(logs, new, strict=True)]
    if name == "sapo":
        steep = 1.0 if advantage > 0 else 1.05
        gates = [1 / (1 + math.exp(-steep * (math.exp(x) - 1))) for x in logs]
        return [-4 / steep * gate * advantage for gate in gates]
    if name == "vespo":
        power, decay = (2, 3) if advantage >= 0 else (3, 2)
        weight = math.exp(whole) ** power * math.exp(decay * (1 - math.exp(whole)))
        return [-weight * advantage * n for n in new]
    if name == "kimi":
        return [-advantage * sum(new) + 0.1 / 2 * whole**2] * len(new)
    assert name == "fipo"
    discount = 2 ** (-1 / 32)
    losses = []
    for t, log in enumerate(logs):
        future = sum(discount**k * x for k, x in enumerate(logs[t:]))
        weight = min(max(math.exp(future), 1.0), 1.2)
        if advantage < 0 and math.exp(log) > 4:
            weight = min(max(weight, 0.8), 1.0)
        held = min(max(math.exp(log), 0.8), 1.28)
        losses.append(-min(math.exp(log) * advantage, held * advantage) * weight)
    return losses


SURROGATES = ["gspo", "gspo_token", "luspo", "gmpo", "cispo", "sapo", "vespo", "kimi", "fipo"]


@pytest.mark.parametrize("name", SURROGATES)
def test_losses_equal_a_plain_slow_version(name):
    for seed in range(5):
        like = random_inputs(seed, spread=0.8 if name == "fipo" else 0.3)
        inputs = inputs_of(like.new, like.advantages, old=like.old, mask=like.mask)
        losses, _ = recipe_of(name).policy_loss(inputs)
        for row, length in enumerate(inputs.mask.sum(1).tolist()):
            new, old = inputs.new[row, :length].tolist(), inputs.old[row, :length].tolist()
            expected = slow_losses(name, new, old, inputs.advantages[row].item())
            assert losses[row, :length].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-6)


OFF_POLICY = [name for name in plugins.names("algorithm") if name != "kimi"]
"""All but one whose loss pulls to the old policy by itself."""


@pytest.mark.parametrize("name", OFF_POLICY)
def test_without_an_advantage_there_is_no_gradient_off_policy_either(name):
    like = random_inputs(ref=None)
    inputs = inputs_of(like.new, torch.zeros(4, 1), old=like.old, mask=like.mask)
    recipe_of(name).loss(inputs).loss.backward()
    assert (inputs.new.grad == 0).all()


def test_gspo_token_is_gspo_where_a_completion_has_one_advantage():
    found = []
    for name in ("gspo", "gspo_token"):
        like = random_inputs(spread=1e-3)
        inputs = inputs_of(like.new, like.advantages, old=like.old, mask=like.mask)
        out = recipe_of(name).loss(inputs)
        out.loss.backward()
        found.append((out.loss.detach(), inputs.new.grad))
    assert 0 < out.metrics["loss/clip_low"] + out.metrics["loss/clip_high"] < inputs.num_tokens
    torch.testing.assert_close(found[0], found[1])


def test_gspo_token_takes_advantages_of_tokens():
    new = torch.full((1, 4), -1.0, requires_grad=True)
    given = torch.tensor([[1.0, 1.0, -2.0, 0.0]])
    recipe_of("gspo_token").loss(inputs_of(new, given)).loss.backward()
    assert new.grad.tolist() == [pytest.approx([-0.25, -0.25, 0.5, 0.0])]


def test_luspo_is_gspo_times_the_length_of_each_completion():
    like = random_inputs(ref=None)
    one = inputs_of(like.new[:1], like.advantages[:1], old=like.old[:1], mask=like.mask[:1])
    assert recipe_of("luspo").loss(one).loss.item() == pytest.approx(
        6 * recipe_of("gspo").loss(one).loss.item()
    )


def test_cispo_keeps_a_gradient_where_the_clip_has_none():
    new = torch.zeros(1, 3, requires_grad=True)
    far = inputs_of(new, torch.ones(1, 1), old=torch.tensor([[-1.0, -3.0, 0.0]]))
    recipe_of("cispo").loss(far).loss.backward()
    assert (-3 * new.grad)[0].tolist() == pytest.approx([math.e, 5.0, 1.0])


def test_kimi_has_the_gradient_of_its_paper():
    new = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    old = torch.tensor([[-1.1, -1.7]])
    given = torch.tensor([[0.75]])
    recipe_of("kimi", tau=0.5).loss(inputs_of(new, given, old=old)).loss.backward()
    # Per token: -(r - mean) + tau (log ratio of the completion).
    assert new.grad[0].tolist() == pytest.approx([-0.75 + 0.5 * -0.2] * 2, rel=1e-5)


def test_the_discounted_sum_looks_ahead_only():
    assert discounted(torch.tensor([[1.0, 2.0, 4.0]]), 0.5).tolist() == [[3.0, 4.0, 4.0]]
