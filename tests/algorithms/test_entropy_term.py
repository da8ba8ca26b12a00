"""The entropy of the whole distribution as a term of any recipe's loss, against plain loops."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from helpers.losses import inputs_of, recipe_of

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
