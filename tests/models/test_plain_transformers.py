"""Log-probs and gradients of every family and kind of media, against plain transformers."""

from __future__ import annotations

import pytest

from helpers.media_cases import groups_of, media_of
from helpers.plain_transformers import plain_numbers, trained_as
from helpers.shared_forward import GRADIENT, LOGPROBS, distance, numbers
from helpers.small import policy
from vlmrl import plugins

each_family = pytest.mark.parametrize("name", plugins.names("family"))


@pytest.mark.slow
@each_family
def test_log_probs_and_their_gradient_are_those_of_plain_transformers(name: str) -> None:
    compare(name, "whole")


@pytest.mark.nightly
@each_family
@pytest.mark.parametrize("training", ["lora", "frozen"])
def test_so_are_those_of_adapters_and_beside_frozen_towers(name: str, training: str) -> None:
    compare(name, training)


@pytest.mark.slow
@each_family
def test_the_weights_without_a_gradient_are_those_that_no_forward_is_said_to_read(
    name: str,
) -> None:
    made = policy(name)
    for medium in made.family.kinds:
        logprobs, _ = made.logprobs(groups_of(made, medium))
        logprobs.sum().backward()
    trained = dict(made.base.named_parameters())
    without = {path for path, w in trained.items() if w.requires_grad and w.grad is None}
    assert without == {path for path in trained if path.startswith(made.family.unread)}


def compare(name: str, training: str) -> None:
    made = trained_as(name, training)
    for medium in media_of(made.family):
        micro = groups_of(made, medium)
        logprobs, gradient = distance(plain_numbers(made, micro), numbers(made, micro, False))
        assert logprobs < LOGPROBS, medium
        assert gradient < GRADIENT, medium
