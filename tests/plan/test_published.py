"""The published figures that plans stand on: they can be built, counted and changed."""

from __future__ import annotations

from dataclasses import fields

import pytest

from helpers.daily import marked
from vlmrl.config import ModelConfig, load, tree
from vlmrl.errors import UserError
from vlmrl.features.plan import published
from vlmrl.features.plan.layouts import layout_of
from vlmrl.features.plan.planner import Planner, PromptContent
from vlmrl.features.plan.published import Assumptions
from vlmrl.features.plan.sketch import sketch

DAILY = (
    *("Qwen/Qwen3-VL-8B-Instruct", "Qwen/Qwen3-VL-30B-A3B-Instruct", "Qwen/Qwen3.5-35B-A3B"),
    *("Qwen/Qwen3-Omni-30B-A3B-Instruct", "google/gemma-4-E4B-it", "google/gemma-3n-E4B-it"),
    *("LiquidAI/LFM2-VL-1.6B", "openbmb/MiniCPM-V-4.6", "OpenGVLab/InternVL3-8B-hf"),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", marked(published.architectures(), DAILY))
def test_an_architecture_has_the_published_number_of_weights(name: str) -> None:
    # Experts are planned in bfloat16 alone; the count is the same in any dtype.
    drawn = sketch(ModelConfig(path=name, dtype="bfloat16"))
    count = sum(p.numel() for p in drawn.base.parameters())
    assert count == pytest.approx(published.architecture_of(name).parameters, rel=2e-3)


@pytest.mark.nightly
@pytest.mark.parametrize("name", published.architectures())
def test_a_step_of_an_architecture_is_rated(name: str) -> None:
    settings = load("quickstart", [f"model={{path: {name}, dtype: bfloat16}}"])
    planner = Planner(
        settings, published.gpu("h100"), Assumptions.of(), PromptContent(1, 448 * 448, 40)
    )
    assert planner.rate(layout_of(planner.config, 8)).times.step > 0


def test_rates_are_in_their_units() -> None:
    for name in published.gpus():
        gpu = published.gpu(name)
        assert 90 < gpu.tflops < 3000 and 0.2 < gpu.hbm_tb < 10 and 16 <= gpu.memory_gb < 300
        assert gpu.network_gb < gpu.nvlink_gb <= 900
    # Sold as 1,979 TFLOPS with sparsity.
    assert published.gpu("h100").flops == pytest.approx(1979e12 / 2, rel=1e-3)


def test_failures_are_those_of_llama_3() -> None:
    hours = Assumptions.of().gpu_hours_per_failure
    assert hours == pytest.approx(54 * 24 * 16384 / 419, rel=1e-3)
    assert hours / 1024 == pytest.approx(49, abs=1)


def test_an_assumption_is_changed_by_its_name() -> None:
    before, after = Assumptions.of(), Assumptions.of(["train_mfu=0.2"])
    changed = {f.name for f in fields(before) if getattr(before, f.name) != getattr(after, f.name)}
    assert changed == {"train_mfu"} and after.train_mfu == 0.2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("train_mfo=0.2", "there is no 'train_mfo'; did you mean 'train_mfu'"),
        ("train_mfu=much", "expected a positive number, got 'much'"),
        ("train_mfu=-1", "expected a positive number, got '-1'"),
    ],
)
def test_a_wrong_assumption_is_named(change: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Assumptions.of([change])


def test_unknown_names_are_answered_with_the_known_ones() -> None:
    with pytest.raises(UserError, match="did you mean 'h100'"):
        published.gpu("h10")
    with pytest.raises(UserError, match="known: Qwen/Qwen2"):
        published.architecture_of("Qwen/Qwen2.5-VL-4B")


def test_the_model_of_every_recipe_can_be_planned() -> None:
    recipes = [name for name in tree.shipped() if name.startswith("recipes/")]
    assert {str(load(name).model.path) for name in recipes} <= published.architectures().keys()
