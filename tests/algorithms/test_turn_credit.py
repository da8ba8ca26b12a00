"""Credit by turn, against a slow version and numbers worked by hand."""

import random
from dataclasses import replace

import pytest
import torch

from helpers.losses import recipe_of, rewards_of, rollouts_of
from vlmrl.algorithms.advantages import EPS, advantages_by_turn, returns_by_turn
from vlmrl.errors import UserError
from vlmrl.forward.packing import pack
from vlmrl.schema import Call, Encoded, Rollouts, Segment, Suffix

LENGTHS = (3, 1, 2, 4)
"""Tokens of a first, second ... turn; an observation of two ids is between turns."""


def talked(completion, paid, refused=(), wrong=()):
    """A completion with a turn for each payment."""
    segments, suffix = [], []
    for turn, reward in enumerate(paid):
        ids = tuple(range(10 * turn, 10 * turn + LENGTHS[turn]))
        calls = (Call("act", {}, "refused" if turn in refused else "ok"),)
        if turn:
            segments.append(Segment((90, 91)))
            suffix += [(90, -1), (91, -1)]
        metrics = {"matched": float(turn not in wrong)}
        row = Segment(ids, (-1.0,) * len(ids), calls=calls, reward=reward, metrics=metrics)
        segments.append(row)
        suffix += [(i, turn) for i in ids]
    own = [s for s in segments if s.of_policy]
    ids, turns = zip(*suffix, strict=True)
    places = torch.arange(2, 2 + len(ids))[None]
    return replace(
        completion,
        token_ids=tuple(i for s in own for i in s.token_ids),
        logprobs=tuple(lp for s in own for lp in s.logprobs),
        segments=tuple(segments),
        suffix=Suffix(Encoded(ids, ids, {}, places, 2 + len(ids)), turns),
    )


def group_of(rewards, paid, refused=None, wrong=None):
    """One group, of these payments for the turns of each completion."""
    made = rollouts_of(rewards)
    refused, wrong = refused or [()] * len(paid), wrong or [()] * len(paid)
    (group,) = made.completions
    talks = tuple(talked(*parts) for parts in zip(group, paid, refused, wrong, strict=True))
    encoded = Encoded((1, 2), (1, 2), {}, torch.arange(2)[None], 2)
    prompts = tuple(replace(p, encoded=encoded) for p in made.batch.prompts)
    return Rollouts(replace(made.batch, prompts=prompts), (talks,))


def slow(totals, paid, gamma, counted):
    """The definition, term by term: R_t, then the mean over those that reach t."""

    def value(g, t):
        rs = [r * 1.0 for r in paid[g]]
        rs[-1] += totals[g] - counted * sum(paid[g])
        return sum(gamma ** (k - t) * rs[k] for k in range(t, len(rs)))

    found = []
    for g, own in enumerate(paid):
        row = []
        for t in range(len(own)):
            reach = [h for h in range(len(paid)) if len(paid[h]) > t]
            if len(reach) > 1:
                base = [value(h, t) for h in reach]
            else:
                base = [value(h, min(t, len(paid[h]) - 1)) for h in range(len(paid))]
            row.append(value(g, t) - sum(base) / len(base))
        found.append(row)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_advantages_of_turns_are_those_of_the_slow_version(seed):
    draw = random.Random(seed)
    paid = [[draw.uniform(-1, 1) for _ in range(draw.randint(1, 4))] for _ in range(5)]
    totals = [draw.uniform(0, 2) for _ in paid]
    gamma, counted = draw.choice([1.0, 0.9]), draw.choice([0.0, 1.0])
    recipe = recipe_of("turn_grpo", gamma=gamma, counted=counted)
    rewards = rewards_of([totals])
    found = recipe.advantages(rewards, group_of(rewards, paid))
    for g, row in enumerate(slow(totals, paid, gamma, counted)):
        tokens = [a for a, n in zip(row, LENGTHS, strict=False) for _ in range(n)]
        assert found.values[0, g, : len(tokens)].tolist() == pytest.approx(tokens, abs=1e-5)
        assert (found.values[0, g, len(tokens) :] == 0).all()


def test_a_reward_of_the_last_turn_is_discounted_on_the_way_back():
    assert returns_by_turn([0.0, -0.5, 1.0], 3.0, 0.5) == [0.75, 1.5, 4.0]
    assert returns_by_turn([0.0], 1.0, 0.5) == [1.0]


def test_a_turn_is_compared_with_those_that_came_as_far():
    returns = [[1.0, 2.0], [0.0, 0.0], [5.0]]
    assert advantages_by_turn(returns, [True] * 3) == [[-1.0, 1.0], [-2.0, -1.0], [3.0]]
    # only one reaches the second turn: the other's last turn counts there
    assert advantages_by_turn([[1.0, 2.0], [0.0]], [True] * 2) == [[0.5, 1.0], [-0.5]]
    # of a masked one nothing counts
    assert advantages_by_turn(returns, [True, True, False]) == [[0.5, 1.0], [-0.5, -1.0], [0.0]]
    assert advantages_by_turn([[0.1, 0.1], [0.1]], [True] * 2) == [[0.0, 0.0], [0.0]]


def test_a_refused_call_costs_its_turn_and_by_the_discount_those_before():
    """ERA's -0.5 falls on the turn with the refused call, and by gamma on those before."""
    rewards = rewards_of([[1.0, 1.0]])
    rollouts = group_of(rewards, [[0.0, 0.0, 0.0]] * 2, [(), (1,)])
    recipe = recipe_of("turn_grpo", gamma=0.5, refused=-0.5)
    values = recipe.advantages(rewards, rollouts).values[0, 1]
    assert values.tolist() == pytest.approx([-0.125] * 3 + [-0.25] + [0.0] * 2)


def test_where_no_rollout_has_turns_advantages_are_those_of_dr_grpo_to_the_bit():
    rewards = rewards_of([[1.0, 0.0, 0.3, 0.7], [0.2, 0.2, 0.2, 0.9]])
    rollouts = rollouts_of(rewards)
    found = recipe_of("turn_grpo").advantages(rewards, rollouts)
    expected = recipe_of("dr_grpo").advantages(rewards, rollouts)
    assert torch.equal(found.values, expected.values)


def test_tokens_of_a_turn_carry_its_advantage_and_observations_none():
    rewards = rewards_of([[1.0, 0.0]])
    rollouts = group_of(rewards, [[0.0, 0.0], [0.5, 0.0]])
    found = recipe_of("turn_grpo", counted=0.0).advantages(rewards, rollouts)
    (batch,) = pack(rollouts, found, updates=1, micro_tokens=10**6, max_tokens=10)
    (micro,) = batch.micro
    # returns [1, 1] and [0.5, 0]
    assert micro.advantages.tolist() == [
        [0.25, 0.25, 0.25, 0.0, 0.0, 0.5],
        [-0.25, -0.25, -0.25, 0.0, 0.0, -0.5],
    ]
    assert micro.mask.tolist() == [[True, True, True, False, False, True]] * 2
    assert batch.num_tokens == 8


def test_a_discount_that_makes_no_sense_is_refused():
    with pytest.raises(UserError, match="gamma"):
        recipe_of("turn_grpo", gamma=0.0)


def slow_ui_s1(paid, wrong, gamma):
    """UI-S1, section 3.4, and its core_uis1.py for returns: plain loops over one group."""

    def normal(value, among):
        mean = sum(among) / len(among)
        deviation = (sum((v - mean) ** 2 for v in among) / (len(among) - 1)) ** 0.5
        return (value - mean) / (deviation + EPS)  # published: 1e-6

    returns = []
    for rewards, bad in zip(paid, wrong, strict=True):
        running, row = 0.0, [0.0] * len(rewards)
        for t in reversed(range(len(rewards))):
            if t in bad:
                row[t], running = rewards[t], 0.0
            else:
                row[t] = running = rewards[t] + gamma * running
        returns.append(row)
    totals = [sum(rewards) for rewards in paid]
    return [
        [
            normal(totals[g], totals)
            + normal(row[t], [other[t] for other in returns if len(other) > t])
            for t in range(len(row))
        ]
        for g, row in enumerate(returns)
    ]


@pytest.mark.parametrize("seed", range(10))
def test_weighted_advantages_of_steps_and_episodes_are_those_of_the_slow_version(seed):
    draw = random.Random(seed)
    lengths = [4, 4, *(draw.randint(1, 4) for _ in range(3))]  # two at least come to every step
    paid = [[draw.uniform(0, 1) for _ in range(n)] for n in lengths]
    wrong = [{t for t in range(n) if draw.random() < 0.4} for n in lengths]
    rewards = rewards_of([[sum(own) for own in paid]])
    recipe = recipe_of("turn_grpo", gamma=0.5, scale="std", episode=1.0, ends="matched")
    found = recipe.advantages(rewards, group_of(rewards, paid, wrong=wrong))
    for g, row in enumerate(slow_ui_s1(paid, wrong, 0.5)):
        tokens = [a for a, n in zip(row, LENGTHS, strict=False) for _ in range(n)]
        assert found.values[0, g, : len(tokens)].tolist() == pytest.approx(tokens, abs=1e-4)
        assert (found.values[0, g, len(tokens) :] == 0).all()


def test_a_wrong_turn_cuts_the_returns_on_both_sides():
    assert returns_by_turn([1.0, 0.25, 1.0], 0.0, 0.5, [False, True, False]) == [1.0, 0.25, 1.0]
    assert returns_by_turn([1.0, 0.25], 2.0, 0.5, [False, True]) == [1.0, 2.25]
