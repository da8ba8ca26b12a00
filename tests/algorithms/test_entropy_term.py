"""The entropy of the whole distribution as a term of any recipe's loss, against plain loops."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from helpers.losses import inputs_of, recipe_of
from vlmrl.errors import UserError
from vlmrl.training import led_weights

LENGTHS = [5, 2, 4]
VOCABULARY = 7


def drawn():
    """Logits [3, 5, V], the sampled tokens [3, 5], and the mask of completions of LENGTHS tokens."""
    noise = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 5, VOCABULARY, generator=noise).requires_grad_()
    tokens = torch.randint(VOCABULARY, (3, 5), generator=noise)
    return logits, tokens, torch.arange(5) < torch.tensor(LENGTHS)[:, None]


def inputs_with_entropy(logits, tokens, mask):
    logprobs = logits.log_softmax(-1)
    new = logprobs.gather(-1, tokens[..., None])[..., 0]
    given = inputs_of(new, torch.tensor([[1.0], [-0.5], [0.25]]), mask=mask)
    return dataclasses.replace(given, entropy=-(logprobs.exp() * logprobs).sum(-1))


@pytest.mark.parametrize("bonus", [0.3, -0.3])
@pytest.mark.parametrize(
    "name", ["grpo", "dapo", "gspo", "cispo", "kimi", "nft", "raft", "dr_grpo"]
)
def test_the_term_is_that_of_a_plain_loop_beside_any_recipe(name: str, bonus: float) -> None:
    logits, tokens, mask = drawn()
    plain, sure = recipe_of(name), recipe_of(name, entropy_bonus=bonus)
    given = inputs_with_entropy(logits, tokens, mask)
    without, found = plain.loss(dataclasses.replace(given, entropy=None)), sure.loss(given)
    term, gradient, p = 0.0, torch.zeros_like(logits), logits.detach().softmax(-1)
    for row, length in enumerate(LENGTHS):
        share = {
            "sequence": 1 / (3 * length),
            "token": 1 / sum(LENGTHS),
            "constant": 1 / (3 * 5),
        }[sure.aggregation]
        for t in range(length):
            chances = p[row, t].tolist()
            entropy = -sum(q * float(torch.tensor(q).log()) for q in chances)
            term -= bonus * entropy * share
            for v, q in enumerate(chances):  # d entropy / d logit = -q (log q + entropy)
                slope = -q * (float(torch.tensor(q).log()) + entropy)
                gradient[row, t, v] = -bonus * slope * share
    assert float((found.loss - without.loss).detach()) == pytest.approx(term, abs=1e-6)
    ours, others = (
        torch.autograd.grad(x.loss, logits, retain_graph=True)[0] for x in (found, without)
    )
    torch.testing.assert_close(ours - others, gradient, atol=1e-6, rtol=0)
    assert sure.entropy_gradient and not plain.entropy_gradient


def test_a_weight_that_keeps_an_entropy_is_led_as_that_of_trl():
    """Beside a loop by TRL's rule: it acts by the entropy of the step before, and moves after each step."""
    entropies = [0.5, 0.19, 0.2, 0.1, 0.3, 0.05, 0.6, 0.7, 0.8]
    algorithm, led = recipe_of("grpo", entropy_bonus=0.01, entropy_target=0.2), {}
    weights, weight, before, expected = [], 0.01, math.inf, []
    for entropy in entropies:
        expected.append(weight if before <= 0.2 else 0.0)
        weight = min(weight + 0.005, 1.0) if entropy <= 0.2 else max(weight - 0.005, 0.0)
        before = entropy
        algorithm = led_weights.follow(algorithm, led)
        weights.append(led_weights.acting(algorithm, led).entropy_bonus)
        led = led_weights.lead(algorithm, led, {"rollout/entropy": entropy}, 8)
        assert led_weights.lead(algorithm, led, {}, 8) == led  # a step without tokens
    assert weights == pytest.approx(expected) and max(weights[2:]) > 0
    assert led["entropy_bonus"] == pytest.approx(weight)


@pytest.mark.parametrize(
    "options",
    [{"entropy_target": 0}, {"entropy_target": 0.2, "entropy_bonus": -0.1}, {"entropy_step": 0}],
)
def test_a_target_that_no_weight_keeps_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(UserError, match="entropy_"):
        recipe_of("grpo", **options)
