"""A teacher beside the rewards: the term in the loss and in the advantages, against plain loops."""

from __future__ import annotations

import pytest
import torch

from helpers.losses import inputs_of, recipe_of
from vlmrl.algorithms import advantages
from vlmrl.algorithms.base import passes_of
from vlmrl.errors import UserError
from vlmrl.schema import ORIGINS, MicroBatch, TrainBatch

LENGTHS = [5, 2, 4]


def drawn(spread: float = 0.5):
    """New, old and the teacher's log-probs [3, 5], and the mask of completions of LENGTHS tokens."""
    noise = torch.Generator().manual_seed(0)
    new = -1 - torch.rand(3, 5, generator=noise)
    old, teacher = (new + spread * torch.randn(3, 5, generator=noise) for _ in range(2))
    mask = torch.arange(5) < torch.tensor(LENGTHS)[:, None]
    return new.requires_grad_(), old, teacher, mask


@pytest.mark.parametrize("name", ["grpo", "dapo", "gspo", "cispo", "kimi", "nft", "raft"])
def test_the_term_in_the_loss_is_that_of_a_plain_loop_beside_any_recipe(name: str) -> None:
    new, old, teacher, mask = drawn()
    values = torch.tensor([[1.0], [-0.5], [0.25]])
    plain, taught = recipe_of(name), recipe_of(name, teacher_kl=0.3)
    known = {**inputs_of(new, values).extra, "teacher": teacher}
    given = inputs_of(new, values, old=old, mask=mask, extra=known)
    without, found = plain.loss(given), taught.loss(given)
    term, gradient, gap, said = 0.0, torch.zeros(3, 5), 0.0, new.detach()
    for row, length in enumerate(LENGTHS):
        share = {
            "sequence": 1 / (3 * length),
            "token": 1 / sum(LENGTHS),
            "constant": 1 / (3 * 5),
        }[taught.aggregation]
        for t in range(length):
            d = float(said[row, t]) - float(teacher[row, t])
            term += 0.3 * d * d / 2 * share
            gradient[row, t] = 0.3 * d * share
            gap += d
    assert float(found.loss - without.loss) == pytest.approx(term, abs=1e-6)
    assert float(found.metrics["loss/teacher_kl"]) == pytest.approx(gap, abs=1e-5)
    ours = torch.autograd.grad(found.loss, new)[0] - torch.autograd.grad(without.loss, new)[0]
    torch.testing.assert_close(ours, gradient, atol=1e-6, rtol=0)


def test_the_term_in_the_advantages_is_that_of_a_plain_loop() -> None:
    recipe = recipe_of("grpo", teacher_kl=0.3, teacher_kl_in_advantage=True)
    _, old, teacher, mask = drawn()
    values = torch.tensor([[1.0], [-0.5], [0.25]])
    origin = torch.tensor([[0.0], [0.0], [ORIGINS.index("demonstration")]])
    nobody = (torch.zeros(3).long(), torch.zeros(3, 5).long(), mask, old)
    extra = {"teacher": teacher, "origin": origin}
    micro = MicroBatch((), *nobody, values, torch.ones(3), old_logprobs=old, extra=extra)
    (made,) = recipe.prepare([TrainBatch((micro,), sum(LENGTHS), 3, 5)])
    found = made.micro[0].advantages
    for row, length in enumerate(LENGTHS):
        for t in range(length):
            gain = 0.3 * float(teacher[row, t] - old[row, t]) if row < 2 else 0.0
            assert float(found[row, t]) == pytest.approx(float(values[row]) + gain, abs=1e-6)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "cispo", "dapo", "bnpo"])
def test_on_policy_both_forms_have_the_gradient_of_the_reverse_divergence(name: str) -> None:
    new, _, teacher, mask = drawn()
    old = new.detach()
    values = torch.tensor([[1.0], [-0.5], [0.25]])
    gradients = []
    for inside in (False, True):
        recipe = recipe_of(name, teacher_kl=0.3, teacher_kl_in_advantage=inside)
        shaped = values + 0.3 * torch.where(mask, teacher - old, 0.0) if inside else values
        given = inputs_of(new, shaped, old=old, mask=mask, extra={"teacher": teacher})
        gradients.append(torch.autograd.grad(recipe.loss(given).loss, new)[0])
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-6, rtol=0)


def test_one_token_that_the_teacher_would_never_write_has_a_bounded_pull() -> None:
    new = torch.tensor([[-1.0, -1.0, -1.0]], requires_grad=True)
    teacher = torch.tensor([[-1.5, -200.0, -30.0]])
    given = inputs_of(new, torch.zeros(1, 1), extra={"teacher": teacher})
    (pull,) = torch.autograd.grad(advantages.penalty(given).sum(), new)
    assert pull.tolist() == [[0.5, 20.0, 20.0]]


def test_rows_that_others_wrote_are_not_compared_with_the_teacher() -> None:
    new, old, teacher, mask = drawn()
    origin = torch.tensor([[0.0], [ORIGINS.index("demonstration")], [0.0]])
    given = inputs_of(
        new, torch.zeros(3, 1), old=old, mask=mask, extra={"teacher": teacher, "origin": origin}
    )
    found = recipe_of("grpo", teacher_kl=0.3).loss(given)
    gradient = torch.autograd.grad(found.loss, new)[0]
    assert (gradient[1] == 0).all() and (gradient[0] != 0).all()


def test_a_teacher_is_asked_only_where_its_term_has_a_weight() -> None:
    assert passes_of(recipe_of("grpo")) == set()
    assert passes_of(recipe_of("grpo", teacher_kl=0.1)) == {"teacher"}
    inside = recipe_of("grpo", teacher_kl=0.1, teacher_kl_in_advantage=True)
    assert passes_of(inside) == {"old", "teacher"}
    for name, value in (("grpo", -0.1), ("on_policy_distillation", 0.1)):
        with pytest.raises(UserError, match="teacher_kl"):
            recipe_of(name, teacher_kl=value)
