"""Corrections for tokens that other weights sampled, against versions in plain Python."""

from __future__ import annotations

import math

import pytest
import torch

from helpers.losses import PUBLISHED, inputs_of, random_inputs, recipe_of
from vlmrl.algorithms import losses as surrogates
from vlmrl.errors import UserError

CAP = 1.3
VIDEO = {"grpo": (0.2, 0.2), "dr_grpo": (0.2, 0.2), "dapo": (0.2, 0.28), "rloo": (0.2, 0.2)}


def weight(correction: str, log_weight: float) -> float:
    ratio = math.exp(log_weight)
    return min(ratio, CAP) if correction == "truncated" else ratio * (ratio <= CAP)


def slow_row(name, correction, new, old, sampling, advantage) -> tuple[list[float], list[float]]:
    """Losses of one completion's tokens, and the derivative of each by its own log-prob.

    With rloo a completion is one action, of which every token has the loss.
    """
    if name == "rloo":
        row = slow_row("grpo", correction, [sum(new)], [sum(old)], [sum(sampling)], advantage)
        return tuple(values * len(new) for values in row)
    losses, slopes = [], []
    for n, o, s in zip(new, old, sampling, strict=True):
        if correction == "one_sided":
            bounded = min(math.exp(n - s), CAP)
            losses.append(-bounded * advantage * n)
            slopes.append(-bounded * advantage)
        elif name == "gpg":
            losses.append(-weight(correction, o - s) * advantage * n)
            slopes.append(-weight(correction, o - s) * advantage)
        else:
            low, high = VIDEO[name]
            ratio = math.exp(n - o)
            clipped = min(max(ratio, 1 - low), 1 + high)
            gain = min(ratio * advantage, clipped * advantage)
            losses.append(-weight(correction, o - s) * gain)
            moves = ratio * advantage <= clipped * advantage
            slopes.append(-weight(correction, o - s) * ratio * advantage * moves)
    return losses, slopes


@pytest.mark.parametrize("correction", ["truncated", "decoupled", "one_sided"])
@pytest.mark.parametrize("name", PUBLISHED)
def test_losses_and_gradients_equal_a_plain_slow_version(name, correction):
    recipe = recipe_of(name, correction=correction, importance_cap=CAP)
    for seed in range(5):
        inputs = random_inputs(seed)
        losses, _ = recipe.policy_loss(inputs)
        losses[inputs.mask].sum().backward()
        for row, length in enumerate(inputs.mask.sum(1).tolist()):
            numbers = (x[row, :length].tolist() for x in (inputs.new, inputs.old, inputs.sampling))
            expected, slopes = slow_row(name, correction, *numbers, inputs.advantages[row].item())
            if name == "rloo":  # every token's loss has the whole completion's log-prob in it
                slopes = [length * slope for slope in slopes]
            assert losses[row, :length].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-6)
            found = inputs.new.grad[row, :length].tolist()
            assert found == pytest.approx(slopes, rel=1e-4, abs=1e-6)


def test_golden_values_of_one_token():
    new = torch.tensor([[math.log(0.6)]])
    half = torch.tensor([[math.log(0.6 / 0.3)]])
    given = torch.tensor([[1.5]])
    assert surrogates.filtered_importance(half, 2.5).item() == pytest.approx(2.0)
    assert surrogates.filtered_importance(half, 1.9).item() == 0.0
    assert surrogates.truncated_importance(half, 1.9).item() == pytest.approx(1.9)
    loss = surrogates.one_sided(new, half, given, cap=5.0)
    assert loss.item() == pytest.approx(-2 * 1.5 * math.log(0.6))
    loss = surrogates.one_sided(new, half, given, cap=1.2)
    assert loss.item() == pytest.approx(-1.2 * 1.5 * math.log(0.6))


def test_one_sided_keeps_a_gradient_where_the_clip_has_none():
    like = random_inputs(spread=0.0)
    far = inputs_of(like.new, torch.ones(4, 1), old=like.old - 1, mask=like.mask)
    recipe_of("grpo").loss(far).loss.backward()
    assert not inputs_gradient(far).any()
    again = random_inputs(spread=0.0)
    far = inputs_of(again.new, torch.ones(4, 1), old=again.old - 1, mask=again.mask)
    out = recipe_of("grpo", correction="one_sided").loss(far)
    out.loss.backward()
    assert inputs_gradient(far).all()
    assert out.metrics["loss/clip_high"].item() == far.num_tokens


def inputs_gradient(inputs) -> torch.Tensor:
    return inputs.new.grad[inputs.mask]


def test_an_unknown_correction_is_refused():
    with pytest.raises(UserError, match="correction"):
        recipe_of("grpo", correction="none")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"importance_floor": 3.0}, "expected importance_floor in"),
        ({"importance_floor": -0.1}, "expected importance_floor in"),
        ({"correction": "one_sided", "importance_floor": 0.5}, "importance_floor 0"),
        ({"correction": "one_sided", "correction_level": "sequence"}, "correction_level recipe"),
        ({"off_policy_threshold": -1.0}, "off_policy_threshold of at least 0"),
    ],
)
def test_bounds_and_levels_that_make_no_sense_are_refused(options, sentence):
    with pytest.raises(UserError, match=sentence):
        recipe_of("grpo", **options)


def test_bad_completions_far_from_the_policy_that_sampled_them_have_no_loss():
    new = torch.full((4, 3), -1.0, requires_grad=True)
    sampling = new.detach() + torch.tensor([[0.5], [0.5], [0.1], [-0.9]])
    given = torch.tensor([[1.0], [-1.0], [-1.0], [-1.0]])
    inputs = inputs_of(new, given, sampling=sampling)
    out = recipe_of("grpo", off_policy_threshold=0.3).loss(inputs)
    out.loss.backward()
    assert new.grad.any(1).tolist() == [True, False, True, True]
    assert out.metrics["loss/off_policy"].item() == 3
