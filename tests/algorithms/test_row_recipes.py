"""Recipes whose loss knows of its rows, against numbers of their papers and slow versions."""

import math
from dataclasses import replace

import pytest
import torch

from helpers.losses import inputs_of, random_inputs, recipe_of, rewards_of, rollouts_of
from helpers.rollouts_ahead import SPARSE, ahead_config, begin_training
from vlmrl.algorithms.base import LossInputs
from vlmrl.algorithms.losses import next_weight
from vlmrl.assemble.validate import validate
from vlmrl.config.exclusions import refuse_parts
from vlmrl.errors import UserError
from vlmrl.forward.packing import pack
from vlmrl.parts.algorithms.apo import divergence_weight, long_wrong_factor
from vlmrl.parts.algorithms.dph import f_divergence
from vlmrl.parts.algorithms.t_spmo import branch_values
from vlmrl.schema import Encoded, Rollouts, TrainBatch

ONE_RIGHT = [[1.0, 0.0, 0.0, 0.0]]


def written(rewards, lengths, origins=None):
    """Rollouts of these lengths, and the origins of each completion of every group."""
    made = rollouts_of(rewards)
    encoded = Encoded((1, 2), (1,), {}, torch.arange(2)[None], 2)
    prompts = tuple(replace(p, encoded=encoded) for p in made.batch.prompts)
    groups = tuple(
        tuple(
            replace(
                c,
                token_ids=tuple(range(n)),
                logprobs=(-1.0,) * n,
                origin=origins[g] if origins else "policy",
            )
            for g, (c, n) in enumerate(zip(group, lengths, strict=True))
        )
        for group in made.completions
    )
    return Rollouts(replace(made.batch, prompts=prompts), groups)


def packed(recipe, rewards, rollouts, micro_tokens=10**6, progress=0.0):
    found = recipe.advantages(rewards, rollouts, progress)
    return pack(rollouts, found, updates=1, micro_tokens=micro_tokens, max_tokens=10)


# -------------------------------------------------------------------------------------------- NFT


@pytest.mark.parametrize(
    ("scale", "expected"), [("none", [0.75, -0.25]), ("std", [1.7320508, -0.5773503])]
)
def test_nft_on_policy_has_the_published_gradient_weights(scale, expected):
    recipe = recipe_of("nft", scale=scale)
    rewards = rewards_of(ONE_RIGHT)
    found = recipe.advantages(rewards, rollouts_of(rewards))
    assert found.values[0, :2].tolist() == pytest.approx(expected)
    new = torch.full((4, 1), -1.0).requires_grad_()
    extra = {name: value.view(4, 1) for name, value in found.extra.items()}
    inputs = inputs_of(new, found.values.view(4, 1), extra=extra)
    recipe.loss(inputs).loss.backward()
    # constant: a sum over 4 completions of at most 1 token, over 4
    assert (-4 * new.grad[:2, 0]).tolist() == pytest.approx(expected)


def test_nft_off_policy_is_the_published_loss():
    new, old, rate = -1.0, -1.4, 0.25
    inputs = inputs_of(
        torch.full((2, 1), new),
        torch.tensor([[0.75], [-0.25]]),
        old=torch.full((2, 1), old),
        extra={
            "correct": torch.tensor([[1.0], [0.0]]),
            "pass_rate": torch.full((2, 1), rate),
        },
    )
    ratio = math.exp(new - old)
    right = -math.log(ratio)
    wrong = -math.log(max((1 - rate * ratio) / (1 - rate), 0.1))
    loss = recipe_of("nft", floor=0.1).loss(inputs).loss.item()
    assert loss == pytest.approx(0.75 * (right + wrong) / 2)
    # Under the floor of 1 the value is 0, and the gradient is not.
    assert recipe_of("nft").loss(inputs).loss.item() == pytest.approx(0.75 * right / 2)


def test_nft_leaves_out_groups_of_one_kind_of_completion():
    rewards = rewards_of([[0.9, 0.8], [0.1, 0.9]])
    found = recipe_of("nft").advantages(rewards, rollouts_of(rewards))
    assert found.values.tolist() == [[0.0, 0.0], [-0.5, 0.5]]
    assert found.extra["pass_rate"].tolist() == [[1.0, 1.0], [0.5, 0.5]]


# ------------------------------------------------------------------------------------------ 80/20


def test_a_fifth_of_the_tokens_of_the_whole_batch_is_trained_on():
    recipe = recipe_of("high_entropy")
    rewards = rewards_of([[1, 0], [0, 1]])
    (batch,) = packed(recipe, rewards, written(rewards, [4, 6]), micro_tokens=12)
    assert len(batch.micro) > 1
    values = iter(torch.arange(1.0, 21.0))
    micro = tuple(
        replace(
            m,
            extra={
                "entropy": torch.stack(
                    [next(values) if k else m.mask.new_zeros(()).float() for k in m.mask.flatten()]
                ).view(m.mask.shape)
            },
        )
        for m in batch.micro
    )
    (made,) = recipe.prepare([replace(batch, micro=micro)])
    chosen = torch.cat([m.extra["entropy"][m.extra["token_weight"] > 0] for m in made.micro])
    assert sorted(chosen.tolist()) == [17, 18, 19, 20]


def test_token_weights_multiply_the_loss_and_leave_the_denominators():
    inputs = random_inputs(ref=None)
    whole = torch.autograd.grad(recipe_of("dapo").loss(inputs).loss, inputs.new)[0]
    weight = torch.zeros(4, 6)
    weight[:, ::2] = 1
    weighted = replace(inputs, extra={"token_weight": weight})
    loss = recipe_of("high_entropy").loss(weighted).loss
    torch.testing.assert_close(torch.autograd.grad(loss, inputs.new)[0], whole * weight)


# ------------------------------------------------------------------------------------ REINFORCE++


@pytest.mark.parametrize("name", ["reinforce_pp", "reinforce_pp_baseline"])
@pytest.mark.parametrize("kl", [0.0, 0.2])
def test_reinforce_pp_whitens_returns_with_the_divergence_over_the_batch(name, kl):
    recipe = recipe_of(name, kl=kl)
    rewards = rewards_of([[1, 0, 0.5], [0, 0, 1]])
    lengths = [2, 5, 3]
    (batch,) = packed(recipe, rewards, written(rewards, lengths), micro_tokens=14)
    noise = torch.Generator().manual_seed(0)
    micro = tuple(
        replace(
            m,
            old_logprobs=-torch.rand(m.mask.shape, generator=noise),
            ref_logprobs=-torch.rand(m.mask.shape, generator=noise),
        )
        for m in batch.micro
    )
    assert recipe.passes == (("old", "reference") if kl else ())
    (made,) = recipe.prepare([replace(batch, micro=micro)])
    slow, fast = [], []
    for before, after in zip(micro, made.micro, strict=True):
        for row in range(len(before.group)):
            p = int(before.prompts[before.group[row]].sample.id)
            size = int(before.mask[row].sum())
            reward = rewards.total[p, lengths.index(size)].item()
            if name == "reinforce_pp_baseline":
                reward -= rewards.total[p].mean().item()
            for t in range(size):
                cost = sum(
                    (before.old_logprobs[row, s] - before.ref_logprobs[row, s]).item()
                    for s in range(t, size)
                )
                slow.append(reward - kl * cost)
                fast.append(after.advantages.expand(after.mask.shape)[row, t].item())
    expected = torch.tensor(slow, dtype=torch.float64)
    expected = (expected - expected.mean()) / (expected.var() + 1e-8).sqrt()
    assert fast == pytest.approx(expected.tolist(), abs=1e-5)


def test_stable_reinforce_whitens_and_filters_tokens_where_the_divergence_is_in_the_reward():
    recipe = recipe_of("stable_reinforce", kl=0.1, kl_in_reward=True, max_deviations=1.5)
    assert set(recipe.passes) == {"old", "reference"}
    rewards = rewards_of([[1.5], [0.0], [0.5], [0.0]])
    (batch,) = packed(recipe, rewards, written(rewards, [4]), micro_tokens=1000)
    noise = torch.Generator().manual_seed(0)
    (micro,) = batch.micro
    old, ref = (-5 * torch.rand(micro.mask.shape, generator=noise) for _ in range(2))
    given = replace(batch, micro=(replace(micro, old_logprobs=old, ref_logprobs=ref),))
    (made,) = recipe.prepare([given])
    slow = []
    for row in range(4):
        reward = rewards.total[int(micro.prompts[micro.group[row]].sample.id), 0].item()
        slow += [reward - 0.1 * (old - ref)[row, t:].sum().item() for t in range(4)]
    z = torch.tensor(slow, dtype=torch.float64)
    z = (z - z.mean()) / (z.var() + 1e-8).sqrt()
    expected = [0.0 if abs(value) > 1.5 else value for value in z.tolist()]
    assert 0 < expected.count(0.0) < 8
    assert made.micro[0].advantages.flatten().tolist() == pytest.approx(expected, abs=1e-5)
    plain = recipe_of("stable_reinforce")
    assert recipe_of("stable_reinforce", kl=0.1).prepare([given]) == [given]
    assert plain.passes == ()


@pytest.mark.parametrize("name", ["grpo", "dapo", "gspo", "raft", "high_entropy", "dph"])
def test_every_recipe_may_take_the_divergence_from_the_reward(name):
    recipe = recipe_of(name, kl=0.2, kl_in_reward=True)
    plain = recipe_of(name)
    assert set(recipe.passes) == {*plain.passes, "old", "reference"}
    rewards = rewards_of([[1, 0, 0.5], [0, 0, 1]])
    (batch,) = packed(recipe, rewards, written(rewards, [2, 5, 3]), micro_tokens=1000)
    noise = torch.Generator().manual_seed(0)
    (micro,) = batch.micro
    old, ref = (-torch.rand(micro.mask.shape, generator=noise) for _ in range(2))
    extra = {**micro.extra, "entropy": torch.rand(micro.mask.shape, generator=noise)}
    micro = replace(micro, old_logprobs=old, ref_logprobs=ref, extra=extra)
    (made,) = recipe.prepare([replace(batch, micro=(micro,))])
    before = micro.advantages.expand(micro.mask.shape)
    for row in range(len(micro.group)):
        for t in range(int(micro.mask[row].sum())):
            cost = sum((old - ref)[row, s].item() for s in range(t, int(micro.mask[row].sum())))
            found = made.micro[0].advantages[row, t].item()
            assert found == pytest.approx(before[row, t].item() - 0.2 * cost, abs=1e-5)
    given = LossInputs(
        new=old + 0.1,
        old=old,
        sampling=old,
        ref=ref,
        advantages=made.micro[0].advantages,
        mask=micro.mask,
        weights=micro.weights,
        num_tokens=batch.num_tokens,
        num_rollouts=batch.num_rollouts,
        max_tokens=batch.max_tokens,
    )
    found = recipe.loss(given)
    torch.testing.assert_close(found.loss, plain.loss(replace(given, ref=None)).loss)
    torch.testing.assert_close(found.metrics["loss/kl"], (old + 0.1 - ref)[micro.mask].sum())


def test_a_weight_of_the_divergence_is_led_to_its_target():
    assert next_weight(0.1, 0.02, 0.01, 1000, 50) == pytest.approx(0.1 * 1.01)  # cut at 0.2
    assert next_weight(0.1, 0.009, 0.01, 1000, 50) == pytest.approx(0.1 * 0.995)
    assert next_weight(0.1, float("nan"), 0.01, 1000, 50) == 0.1
    for options in ({"kl_target": 0.1}, {"kl": 0.1, "kl_target": 0}, {"kl_horizon": 0}):
        with pytest.raises(UserError, match=r"kl_target|kl_horizon"):
            recipe_of("grpo", **options)


@pytest.mark.parametrize("option", ["kl", "entropy_bonus"])
def test_a_weight_that_adapts_has_no_schedule(tmp_path, option):
    target = f"{option.removesuffix('_bonus')}_target"
    both = f"algorithm.options={{{option}: {{schedule: {{linear: [0.1, 0.05]}}}}, {target}: 0.1}}"
    with pytest.raises(UserError, match=f"with {target}"):
        refuse_parts(ahead_config(tmp_path, both))


def test_a_group_of_one_is_for_recipes_that_compare_no_group(tmp_path):
    one = ["rollout.group_size=1", "algorithm=reinforce_pp"]
    validate(ahead_config(tmp_path, *one))
    for name in ("grpo", "reinforce_pp_baseline"):
        with pytest.raises(UserError, match=f"group_size: expected at least 2.*{name}.*got 1"):
            validate(ahead_config(tmp_path, "rollout.group_size=1", f"algorithm={name}"))


# ------------------------------------------------------------------------- rows of another origin


@pytest.mark.parametrize(
    ("name", "expected"), [("forward_kl", 0.307), ("js", 0.170), ("alpha", 0.368)]
)
def test_f_of_two_is_the_published_number(name, expected):
    two = torch.tensor(math.log(2), dtype=torch.float64)
    assert f_divergence(name, two, 0.2).item() == pytest.approx(expected, abs=5e-4)
    assert f_divergence(name, torch.zeros(()), 0.2).item() == pytest.approx(0, abs=1e-6)
    assert math.isfinite(f_divergence(name, torch.tensor(20.0), 0.2).item())


def loss_of(recipe, batch, new=-1.3):
    total = 0.0
    for m in batch.micro:
        total += recipe.loss(
            replace(
                inputs_of(torch.full(m.mask.shape, new), m.advantages, mask=m.mask, extra=m.extra),
                weights=m.weights,
                num_tokens=batch.num_tokens,
                num_rollouts=batch.num_rollouts,
                max_tokens=batch.max_tokens,
            )
        ).loss.item()
    return total


def test_dph_has_a_mean_of_its_own_over_rehearsed_rows_and_dapos_over_the_rest():
    recipe = recipe_of("dph", divergence_of="forward_kl", rehearsal=0.5, dynamic_sampling_batches=0)
    rewards = rewards_of([[1, 0, 1, 0]])
    rollouts = written(rewards, [2, 3, 4, 5], ["policy", "policy", "rehearsal", "rehearsal"])
    found = recipe.advantages(rewards, rollouts)
    assert found.values[0].tolist() == pytest.approx([0.7070, -0.7070, 0, 0], abs=1e-3)
    assert found.kept.all()
    for cut in (10**6, 8):
        (batch,) = recipe.prepare(packed(recipe, rewards, rollouts, cut))
        u = math.exp(-1.3 + 1.0)
        rehearsed = 0.5 * (u - math.log(u) - 1)
        policy = -(2 * 0.7070 - 3 * 0.7070) / 5  # a mean over 5 tokens, at ratio 1
        assert loss_of(recipe, batch) == pytest.approx(rehearsed + policy, abs=1e-3)


def test_chord_adds_the_weighted_imitation_to_what_is_left_of_grpo():
    recipe = recipe_of("chord", mu=0.25)
    rewards = rewards_of([[1, 0, 0]])
    rollouts = written(rewards, [2, 3, 4], ["policy", "policy", "demonstration"])
    p = math.exp(-1.3)
    grpo = 0.0  # advantages of opposite signs, each over its own length, at ratio 1
    (batch,) = recipe.prepare(packed(recipe, rewards, rollouts))
    assert loss_of(recipe, batch) == pytest.approx(0.75 * grpo + 0.25 * 1.3 * p * (1 - p), abs=1e-6)
    bare = recipe_of("chord", mu=0.25, phi=False)
    assert loss_of(bare, batch) == pytest.approx(0.25 * 1.3, abs=1e-6)


@pytest.mark.parametrize("name", ["chord", "dph", "luffy"])
def test_without_rows_of_another_origin_it_is_the_recipe_that_it_extends(name):
    base = {"chord": ("grpo", {}), "dph": ("dapo", {}), "luffy": ("dr_grpo", {})}[name]
    inputs = random_inputs(ref=None)
    inputs = inputs_of(inputs.new, inputs.advantages, mask=inputs.mask)  # on-policy: nothing clips
    mine = recipe_of(name).loss(inputs).loss
    theirs = recipe_of(base[0], **base[1]).loss(inputs).loss
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize(
    ("name", "origin"), [("luffy", "demonstration"), ("critique_grpo", "refinement")]
)
def test_guided_tokens_are_shaped_and_counted_in_the_group(name, origin):
    recipe = recipe_of(name)
    rewards = rewards_of([[1, 0, 0, 0]])
    origins = [origin, "policy", "policy", "policy"]
    rollouts = written(rewards, [2, 2, 2, 2], origins)
    (batch,) = packed(recipe, rewards, rollouts)
    assert batch.micro[0].advantages[:, 0].tolist() == [0.75, -0.25, -0.25, -0.25]
    p = math.exp(-1.3)
    expected = (2 * -0.75 * p / (p + 0.1) + 6 * 0.25) / (4 * 10)
    assert loss_of(recipe, batch) == pytest.approx(expected, abs=1e-6)


def test_guide_grpo_takes_the_ratio_to_the_log_probs_with_the_hint():
    rewards = rewards_of([[1, 0, 0, 0]])
    origins = ["hint", "policy", "policy", "policy"]
    rollouts = written(rewards, [2, 2, 2, 2], origins)
    (plain,) = packed(recipe_of("grpo"), rewards, rollouts)
    stored = plain.micro[0].extra["stored_logprobs"]
    (batch,) = packed(recipe_of("guide_grpo"), rewards, rollouts)
    advantage = batch.micro[0].advantages[0].item()
    ratios = (-1.3 - stored[0]).exp()
    hinted = torch.minimum(ratios * advantage, ratios.clamp(0.8, 1.2) * advantage).mean()
    others = -sum(batch.micro[0].advantages[1:, 0].tolist())
    expected = (-float(hinted) + others) / 4
    assert loss_of(recipe_of("guide_grpo"), batch) == pytest.approx(expected, abs=1e-5)


# -------------------------------------------------------------------- difficulty, length, progress


def test_dads_and_stcr_have_the_published_numbers():
    weights = divergence_weight(torch.tensor([0.0, 0.125, 0.5, 0.75, 0.875, 1.0]))
    assert weights.tolist() == pytest.approx([1, 0.907, 0.743, 0.493, 0.288, 1], abs=5e-4)
    right = torch.tensor([[True, False, False, False]])
    lengths = torch.tensor([[100.0, 200, 300, 400]])
    factors = long_wrong_factor(right, torch.ones(1, 4).bool(), lengths, 1.00001)
    assert factors[0].tolist() == pytest.approx([1, 1.001, 1.002, 1.003], abs=5e-6)
    none = long_wrong_factor(~right & right, torch.ones(1, 4).bool(), lengths, 1.00001)
    assert (none == 1).all()


def test_apo_weighs_the_divergence_of_right_completions_alone():
    recipe = recipe_of("apo", kl=1.0)
    rewards = rewards_of(ONE_RIGHT)
    found = recipe.advantages(rewards, written(rewards, [1, 2, 3, 4]))
    assert found.extra["kl_weight"][0].tolist() == pytest.approx([0.493, 1, 1, 1], abs=5e-4)
    inputs = random_inputs()
    twice = replace(inputs, extra={"kl_weight": torch.full((4, 1), 2.0)})
    plain = recipe_of("grpo").loss(inputs).loss
    once = recipe.loss(inputs).loss - plain
    torch.testing.assert_close(recipe.loss(twice).loss - plain, 2 * once)


def test_observe_r1_weighs_by_pass_rate_and_pays_the_shortest_right_answer():
    recipe = recipe_of("observe_r1")
    rewards = rewards_of([[1, 0, 1, 0], [1, 1, 1, 1]])
    rollouts = written(rewards, [300, 90, 150, 80])
    shaped = recipe.shape(rewards, rollouts, 400)
    assert shaped.total.tolist() == [[1, 0, pytest.approx(1.2), 0], [1, 1, 1, pytest.approx(1)]]
    found = recipe.advantages(rewards, rollouts)
    plain = recipe_of("grpo").advantages(rewards, rollouts)
    torch.testing.assert_close(found.values, 1.8 * plain.values)
    quarter = recipe.advantages(rewards_of(ONE_RIGHT), rollouts_of(rewards_of(ONE_RIGHT)))
    assert quarter.values[0, 0].item() == pytest.approx(1.5 * 7.2 * 0.25 * 0.75, abs=1e-3)


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        (0.0, [0, math.sin(math.pi / 4), 1, 1, 1]),
        (0.5, [0, math.sin(math.pi / 4), 1, math.sin(math.pi / 4), 0]),
        (0.9, [0.25, 1, 1, math.sin(math.pi / 4), 0]),
    ],
)
def test_odsw_prefers_easy_then_medium_then_hard_prompts(progress, expected):
    rates = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0])
    weights = recipe_of("odsw").weight(rates, progress)
    assert weights.tolist() == pytest.approx(expected, abs=1e-6)
    rewards = rewards_of(ONE_RIGHT)
    found = recipe_of("odsw").advantages(rewards, rollouts_of(rewards), progress)
    assert found.values[0, 0].item() == pytest.approx(1.5 * expected[1], abs=1e-3)


# --------------------------------------------------------------------------------- some tokens only


def test_s_grpo_draws_tokens_and_averages_over_those():
    recipe = recipe_of("s_grpo", always=2, chance=0.5, most=5)
    rewards = rewards_of([[1, 0]])
    weight = recipe.advantages(rewards, written(rewards, [40, 1])).extra["token_weight"]
    long = weight[0, 0]
    assert int((long > 0).sum()) == 5 and (long[:2] > 0).all()
    assert long.sum().item() == pytest.approx(40)
    assert weight[0, 1, 0] == 1 and (weight[0, 1, 1:] == 0).all()
    again = recipe.advantages(rewards, written(rewards, [40, 1]), 0.5).extra["token_weight"]
    assert not torch.equal(weight, again)


def test_t_spmo_is_worth_what_became_of_each_branch():
    ids = [(1, 2, 3), (1, 2, 4), (1, 5), (1, 2, 3)]
    rewards = [1.0, 0.0, 0.0, 0.5]
    found = branch_values(ids, rewards)
    at_2, at_5 = 0.5 - 0.375, 0.0 - 0.375
    at_3, at_4 = 0.75 - 0.5, 0.0 - 0.5
    assert found[0] == pytest.approx([0, at_2 / 3, at_3 / 2])
    assert found[1] == pytest.approx([0, at_2 / 3, at_4])
    assert found[2] == pytest.approx([0, at_5])
    assert found[3] == found[0]


# ------------------------------------------------------------------------------------ whole steps


def test_papo_is_paid_for_what_the_media_told():
    inputs = random_inputs(ref=None)
    blind = inputs.new.detach() - 0.5
    seeing = replace(inputs, extra={"masked_media": blind})
    gap = math.exp(-0.5) + 0.5 - 1
    grpo = recipe_of("grpo", aggregation="token").loss(inputs).loss.item()
    found = recipe_of("papo", perception=0.3).loss(seeing)
    assert found.loss.item() == pytest.approx(grpo - 0.3 * gap, abs=1e-6)
    tokens = int(inputs.mask.sum())
    assert found.metrics["loss/perception"].item() == pytest.approx(gap * tokens, rel=1e-5)
    surer = recipe_of("papo", perception=0.3, double_entropy=0.03).loss(seeing)
    unsure = [-float(p) for p in inputs.new.detach()[inputs.mask]]
    assert (surer.loss - found.loss).item() == pytest.approx(0.03 * sum(unsure) / tokens, abs=1e-6)
    slopes = [torch.autograd.grad(x.loss, inputs.new, retain_graph=True)[0] for x in (surer, found)]
    expected = torch.where(inputs.mask, -0.03 / tokens, 0.0)
    torch.testing.assert_close(slopes[0] - slopes[1], expected, atol=1e-7, rtol=0)
    far = replace(inputs, extra={"masked_media": inputs.new.detach() + 9})
    assert recipe_of("papo", perception=1.0).loss(far).loss.item() == pytest.approx(grpo - 10)


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [
        "high_entropy, options: {dynamic_sampling_batches: 0}",
        "reinforce_pp, options: {kl: 0.1}",
        "observe_r1, options: {kl: 0.1}",
        "apo, options: {kl: 0.1}",
        "papo",
        "nft",
        "t_spmo",
        "s_grpo",
    ],
)
def test_a_whole_step_runs_its_passes(algorithm, tmp_path):
    settings = ahead_config(tmp_path / "run", f"algorithm={{name: {algorithm}}}", SPARSE)
    with begin_training(settings) as trainer:
        metrics = trainer.step().metrics
    assert math.isfinite(metrics["loss/total"]) and metrics["update/skipped"] == 0
    if algorithm == "papo":
        assert metrics["loss/perception"] > 0


def test_a_batch_in_which_nothing_is_kept_is_prepared():
    empty = [TrainBatch((), 0, 0, 9)]
    for name in ("high_entropy", "reinforce_pp", "dph", "chord"):
        assert list(recipe_of(name).prepare(empty)) == empty
        assert list(recipe_of(name).prepare([])) == []
